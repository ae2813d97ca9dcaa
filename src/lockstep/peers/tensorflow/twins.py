"""The models of `mlp` and `cifar100` in TensorFlow: functions of variables that have the plain model's names.

A variable lies as TensorFlow's CPU kernels want it: convolutions as height x width x in x out, images as height x width
x channels. `to_tensorflow` and `to_torch` turn one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

Weights = Mapping[str, Any]
Statistics = dict[str, Any]
"""Of each BatchNorm, by the name of its running value: the sum over lanes of what the lanes measured."""
MOMENTUM, EPSILON = 0.1, 1e-5
"""Of BatchNorm, torch's defaults."""
RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True, kw_only=True)
class TrainingInput:
    """What a forward in training gets beside the samples."""

    lanes: tuple[int, ...]
    """How many samples each lane has: BatchNorm's statistics are those of a lane."""
    mask: Any = None
    """Which inputs of the dropout stay; None where there is no dropout."""


Forward = Callable[[Weights, Any, TrainingInput | None], tuple[Any, Statistics]]
"""Returns the scores, and BatchNorm's statistics; without a `TrainingInput` it evaluates."""


def mlp(weights: Weights, points: Any, training: TrainingInput | None) -> tuple[Any, Statistics]:
    """Return the scores of the perceptron; its layers have the numbers of the chain in torch."""
    inner = tf.nn.silu(_linear(weights, "0", points))
    inner = tf.nn.silu(_linear(weights, "2", inner))
    if training is not None:
        inner = tf.where(training.mask, inner / 0.9, tf.zeros_like(inner))
    inner = tf.nn.silu(_linear(weights, "5", inner))
    return _linear(weights, "7", inner), {}


def cifar100(weights: Weights, images: Any, training: TrainingInput | None) -> tuple[Any, Statistics]:
    """Return the scores of the small ResNet."""
    statistics: Statistics = {}

    def norm(name: str, values: Any) -> Any:
        return _batch_norm(weights, name, values, training, statistics)

    inner = tf.nn.silu(norm("stem_norm", _convolution(weights["stem.weight"], images, 2)))
    for block, stride in (("stages.0", 1), ("stages.1", 2), ("stages.2", 2)):
        shortcut = inner
        if f"{block}.shortcut.0.weight" in weights:
            convolved = _convolution(weights[f"{block}.shortcut.0.weight"], inner, stride)
            shortcut = norm(f"{block}.shortcut.1", convolved)
        inner = tf.nn.silu(norm(f"{block}.first_norm", _convolution(weights[f"{block}.first.weight"], inner, stride)))
        inner = norm(f"{block}.second_norm", _convolution(weights[f"{block}.second.weight"], inner, 1))
        inner = tf.nn.silu(inner + shortcut)
    return _linear(weights, "head", tf.reduce_mean(inner, (1, 2))), statistics


TWINS: dict[str, Forward] = {"mlp": mlp, "cifar100": cifar100, "cifar100:float64": cifar100}


def _linear(weights: Weights, name: str, values: Any) -> Any:
    return tf.nn.bias_add(tf.matmul(values, weights[f"{name}.weight"]), weights[f"{name}.bias"])


def _convolution(kernel: Any, images: Any, stride: int) -> Any:
    """Pad as torch does, the same on all sides; TensorFlow's own padding of a stride of 2 is on one side only."""
    margin = (kernel.shape[0] - 1) // 2
    if margin and stride > 1:
        images = tf.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    return tf.nn.conv2d(images, kernel, stride, "SAME" if margin and stride == 1 else "VALID")


def _batch_norm(
    weights: Weights, name: str, values: Any, training: TrainingInput | None, statistics: Statistics
) -> Any:
    """Normalise each lane by its own statistics; in evaluation all by the running ones."""
    scale, offset = weights[f"{name}.weight"], weights[f"{name}.bias"]
    if training is None:
        mean, variance = (weights[f"{name}.{running}"] for running in RUNNING)
        return tf.nn.batch_normalization(values, mean, variance, offset, scale, EPSILON)
    parts = []
    sums = [tf.zeros_like(scale), tf.zeros_like(scale)]
    for lane in tf.split(values, training.lanes) if len(training.lanes) > 1 else [values]:
        normed, mean, variance = _normalised(lane, scale, offset)
        parts.append(normed)
        sums = [sums[0] + mean, sums[1] + variance]
    statistics |= {f"{name}.{running}": total for running, total in zip(RUNNING, sums, strict=True)}
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def _normalised(values: Any, scale: Any, offset: Any) -> tuple[Any, Any, Any]:
    """Return normalised values, their mean, and their variance as the running one counts it: over n - 1."""
    if values.dtype == tf.float64:  # the fused kernel has no double precision
        mean, variance = tf.nn.moments(values, (0, 1, 2))
        count = tf.cast(tf.size(values) // tf.size(scale), tf.float64)
        normed = tf.nn.batch_normalization(values, mean, variance, offset, scale, EPSILON)
        return normed, mean, variance * count / (count - 1)
    normed, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=values, scale=scale, offset=offset, mean=[], variance=[], epsilon=EPSILON, is_training=True
    )
    return normed, mean, variance


def to_tensorflow(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a weight of torch as it lies in TensorFlow."""
    axes: Sequence[int] = {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim, tuple(range(array.ndim)))
    return np.ascontiguousarray(array.transpose(axes))


def to_torch(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a weight of TensorFlow as it lies in torch."""
    axes: Sequence[int] = {4: (3, 2, 0, 1), 2: (1, 0)}.get(array.ndim, tuple(range(array.ndim)))
    return np.ascontiguousarray(array.transpose(axes))


def images_last(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return images with their channels last; other samples as they are."""
    return np.ascontiguousarray(samples.transpose(0, 2, 3, 1)) if samples.ndim == 4 else np.asarray(samples)
