"""AdamW and SGD as torch computes them, by TensorFlow's fused kernels on plain variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class TwinOptimizer(Protocol):
    """Updates variables in TensorFlow's graph."""

    state: dict[str, dict[str, Any]]
    """By parameter: the variables that torch's optimizer has, under torch's keys."""

    def scalars(self, step: int) -> list[float]:
        """Return the numbers of a step, counted from 0, that the graph gets as arguments."""
        ...

    def update(self, name: str, variable: Any, gradient: Any, scalars: Any) -> None:
        """Update one variable."""
        ...


class AdamW:
    """Weight decay apart from the gradient.

    TensorFlow's kernel adds epsilon elsewhere than torch, and takes 1 - beta in single precision, where 1 - 0.999 has
    five digits: both moments are wrong by a factor. The rate and epsilon that the kernel gets make up for it.
    """

    def __init__(self, settings: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self._rate, self._decay, self._epsilon = settings["lr"], settings["weight_decay"], settings["eps"]
        self._betas = tuple(settings["betas"])
        self.state = {
            name: {key: tf.Variable(tf.zeros_like(one)) for key in ("exp_avg", "exp_avg_sq")}
            for name, one in variables.items()
        }

    def scalars(self, step: int) -> list[float]:
        """Return the rate with its corrections, computed in full precision here, and epsilon as the kernel wants it."""
        first, second = (1 - beta ** (step + 1) for beta in self._betas)
        off_first, off_second = (float(np.float32(1) - np.float32(beta)) / (1 - beta) for beta in self._betas)
        root = math.sqrt(second * off_second)
        return [self._rate * root / first / off_first, self._epsilon * root]

    def update(self, name: str, variable: Any, gradient: Any, scalars: Any) -> None:
        """Shrink, then move."""
        held = self.state[name]
        variable.assign(variable * (1 - self._rate * self._decay))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=held["exp_avg"].handle,
            v=held["exp_avg_sq"].handle,
            beta1_power=0.0,  # corrected already
            beta2_power=0.0,
            lr=scalars[0],
            beta1=self._betas[0],
            beta2=self._betas[1],
            epsilon=scalars[1],
            grad=gradient,
        )


class SGD:
    """Momentum, with Nesterov or without, and weight decay in the gradient."""

    def __init__(self, settings: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self._rate, self._decay = settings["lr"], settings["weight_decay"]
        self._momentum, self._nesterov = settings["momentum"], settings["nesterov"]
        self.state = {name: {"momentum_buffer": tf.Variable(tf.zeros_like(one))} for name, one in variables.items()}

    def scalars(self, step: int) -> list[float]:
        """Need none."""
        return [0.0]

    def update(self, name: str, variable: Any, gradient: Any, scalars: Any) -> None:
        """Move along the momentum."""
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.state[name]["momentum_buffer"].handle,
            lr=tf.constant(self._rate, variable.dtype),
            grad=gradient + self._decay * variable if self._decay else gradient,
            momentum=self._momentum,
            use_nesterov=self._nesterov,
        )


OPTIMIZERS: dict[str, Any] = {"AdamW": AdamW, "SGD": SGD}


def torch_steps(kind: str, steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return what torch's optimizer holds beside: AdamW counts its steps for each parameter."""
    return {"step": np.array(steps, np.float32)} if kind == "AdamW" else {}
