// What the devices compute: memory, copies and views here, everything else on the CPU, on copies.
#include "memory.h"
#include "random.h"
#include "streams.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <torch/library.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// Of the runtime that torch has loaded: linking with -fopenmp could load a second one.
extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads(void);
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int);  // not in every build of torch

namespace pretend {
namespace {

using at::Tensor;
using c10::DeviceType;

// The device at work: what it copies is no copy of the user's, and what it computes does not depend on how many CPU threads
// the calling thread may use. Backward runs in a thread per device, which keeps the number that it found at its first
// operator, whatever torch.set_num_threads says later: on a GPU no bit could depend on that.
struct Within {
  bool before = uncounted();
  int threads = 1, mkl_threads = 0;
  Within() {
    uncounted() = true;
    at::internal::lazy_init_num_threads();  // which sets the number, once for each thread
    threads = omp_get_max_threads();
    omp_set_num_threads(1);
    if (MKL_Set_Num_Threads_Local) mkl_threads = MKL_Set_Num_Threads_Local(1);
  }
  ~Within() {
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(mkl_threads);
    omp_set_num_threads(threads);
    uncounted() = before;
  }
};

bool ours(const Tensor& tensor) { return tensor.device().type() == DeviceType::PrivateUse1; }

// The same elements as a CPU tensor, for the device's own use, see [Note: two views].
Tensor seen(const Tensor& tensor) {
  if (!ours(tensor)) return tensor;
  auto options = tensor.options().device(c10::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  Tensor same = at::from_blob(host_view(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  same._set_conj(tensor.is_conj());
  same._set_neg(tensor.is_neg());
  return same;
}

void note(const Tensor& tensor, bool written) {
  if (!ours(tensor) || !tensor.has_storage() || tensor.numel() == 0) return;
  const void* start = tensor.storage().data();
  written ? note_write(start) : note_read(start);
}

// -- memory

Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                           std::optional<c10::Device> device, std::optional<bool>,
                           std::optional<c10::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(DeviceType::PrivateUse1),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           c10::GetAllocator(DeviceType::PrivateUse1),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  size_t needed = (impl->storage_offset() + impl->numel()) * impl->dtype().itemsize();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    auto larger = c10::GetAllocator(DeviceType::PrivateUse1)->allocate(needed);
    if (storage->nbytes()) std::memcpy(host_view(larger.get()), host_view(storage->data()), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(needed);
  }
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::set_(self, source, offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) { return at::cpu::set_(self, std::move(source)); }
Tensor& set_tensor(Tensor& self, const Tensor& source) { return at::cpu::set_(self, source); }

// -- copies

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  if (self.numel() == 0) return to;
  c10::DeviceGuard guard(ours(self) ? self.device() : to.device());
  note(self, false);
  note(to, true);
  bool down = ours(self) && !ours(to), up = !ours(self) && ours(to);
  if (ours(self) && ours(to) && self.device() != to.device()) join_streams(self.device().index(), to.device().index());
  if (!uncounted()) {
    auto& all = counts();
    (down ? all.to_host : up ? all.to_device : all.between)++;
    bool pinned = is_pinned((down ? to : self).const_data_ptr());
    if (down && non_blocking && pinned) {  // it arrives when the host waits, and is nonsense until then
      Tensor value = seen(self).clone(), target = to;
      std::memset(target.mutable_data_ptr(), 0xFF, target.is_contiguous() ? target.nbytes() : target.itemsize());
      defer(self.device().index(), [value, target]() mutable {
        Within within;
        target.detach().copy_(value);
      });
      return to;
    }
    if (down || (up && !(non_blocking && pinned))) host_waits((down ? self : to).device().index());
  }
  Within within;
  at::NoGradGuard no_grad;
  Tensor target = seen(to);
  target.copy_(seen(self));
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) at::native::resize_output(to, self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  note(self, false);
  if (!uncounted()) {
    counts().to_host++;
    host_waits(self.device().index());
  }
  return at::_local_scalar_dense(seen(self));
}

void record_stream_op(Tensor& self, c10::Stream stream) {
  if (self.numel()) record_stream(self.storage().data(), stream);
}

// -- views

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at;
  if (offset) at = offset->expect_int();
  return at::cpu::as_strided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::cpu::view(self, C10_AS_INTARRAYREF_SLOW(size)); }
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor view_as_real(const Tensor& self) { return at::native::view_as_real(self); }
Tensor view_as_complex(const Tensor& self) { return at::native::view_as_complex(self); }
Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

// -- what the CPU computes in the device's place

// A view that the CPU makes is one of a copy: what is written to it is lost.
bool makes_views(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

// These make a real device's host wait: the shape, or the answer, depends on the numbers.
bool waits(std::string_view name) {
  for (auto one : {"aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
                   "aten::unique_consecutive", "aten::equal", "aten::bincount", "aten::repeat_interleave.Tensor"})
    if (name == one) return true;
  return false;
}

// Of these CUDA has no deterministic form, and says so if one is asked for; so do we.
bool not_deterministic(std::string_view name) {
  for (auto one : {"upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
                   "upsample_trilinear3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
                   "adaptive_max_pool2d_backward", "avg_pool3d_backward", "max_pool3d_with_indices_backward",
                   "grid_sampler_2d_backward", "grid_sampler_3d_backward", "nll_loss2d_forward", "_ctc_loss_backward",
                   "reflection_pad2d_backward", "replication_pad2d_backward", "histc", "kthvalue"}) {
    std::string whole = std::string("aten::") + one;
    if (name == whole) return true;
  }
  return false;
}

struct Args {  // of one call
  c10::Device device{DeviceType::PrivateUse1, -1};
  bool found = false;
};

void check_device(Args& args, const Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || !ours(tensor)) return;
  check_not_lost(tensor.device().index());
  TORCH_CHECK(!args.found || args.device == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
              args.device, " and ", tensor.device(), "! (when checking arguments of ", name, ")");
  args.device = tensor.device();
  args.found = true;
}

void refuse_cpu(const Tensor& tensor, const Args& args, const std::string& name) {
  if (!tensor.defined() || ours(tensor) || tensor.dim() == 0 || tensor.numel() == 0) return;
  TORCH_CHECK(tensor.device().type() != c10::kCPU, "Expected all tensors to be on the same device, but found at least two devices, ",
              args.device, " and cpu! (when checking arguments of ", name, ")");
}

template <typename Do>
void each_tensor(const c10::IValue& value, Do act) {
  if (value.isTensor()) act(value.toTensor());
  else if (value.isTensorList())
    for (const Tensor& one : value.toTensorVector()) act(one);
  else if (value.isOptionalTensorList())
    for (const auto& one : value.toOptionalTensorVector())
      if (one) act(*one);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  const std::string full = schema.overload_name().empty() ? name : name + "." + schema.overload_name();
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0 || name.rfind("_c10d_functional", 0) == 0,
                              "Could not run '", full, "' with arguments from the 'pretend' backend.");
  TORCH_CHECK_NOT_IMPLEMENTED(!makes_views(schema), "pretend: '", full, "' makes a view, which the CPU cannot do in its place");
  note_use();
  auto arguments = torch::jit::last(*stack, schema.arguments().size());
  size_t first = stack->size() - arguments.size();
  Args args;
  for (auto& value : arguments) each_tensor(value, [&](const Tensor& one) { check_device(args, one, full); });
  bool indexing = name.find("index") != std::string::npos;  // indices may be on the host
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    each_tensor((*stack)[first + i], [&](const Tensor& one) {
      if (args.found && !(indexing && argument.name() == "indices")) refuse_cpu(one, args, full);
      if (one.defined()) note(one, writes);
    });
  }
  c10::OptionalDeviceGuard guard;
  if (args.found) guard.reset_device(args.device);
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    auto& value = (*stack)[first + i];
    if (argument.name() == "generator" && (value.isNone() || value.isGenerator()))
      value = cpu_generator(value.isNone() ? default_generator(current_device()) : value.toGenerator());
  }
  if (not_deterministic(name)) at::globalContext().alertNotDeterministic(c10::str(name.substr(6), "_pretend"));
  if (waits(full) && !uncounted()) host_waits(current_device());
  if (!uncounted()) counts().launches++;
  Within within;
  at::native::cpu_fallback(op, stack);
}

// -- what has no CPU form of its own

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
                   int64_t groups) {
  note(input, false);
  note(weight, false);
  c10::DeviceGuard guard(input.device());
  TORCH_CHECK(weight.device() == input.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
              input.device(), " and ", weight.device(), "! (when checking arguments of convolution)");
  std::optional<Tensor> shift;
  if (bias && bias->defined()) shift = seen(*bias);
  counts().launches++;
  Within within;
  return at::convolution(seen(input), seen(weight), shift, stride, padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        c10::IntArrayRef stride, c10::IntArrayRef padding,
                                                        c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  for (auto* one : {&grad, &input, &weight}) note(*one, false);
  c10::DeviceGuard guard(input.device());
  counts().launches++;
  Within within;
  std::optional<c10::IntArrayRef> bias_sizes;
  int64_t channels = grad.size(1);
  if (mask[2]) bias_sizes = c10::IntArrayRef(&channels, 1);
  auto [a, b, c] = at::convolution_backward(seen(grad), seen(input), seen(weight), bias_sizes, stride, padding, dilation,
                                            transposed, output_padding, groups, mask);
  auto put = [&](const Tensor& one) { return one.defined() ? one.to(input.device()) : Tensor(); };
  return {put(a), put(b), put(c)};
}

std::tuple<Tensor, Tensor> dropout(const Tensor& input, double probability, std::optional<bool> train) {
  note(input, false);
  c10::DeviceGuard guard(input.device());
  counts().launches++;
  Within within;
  Tensor values = seen(input);
  if (train && !*train) return {values.clone().to(input.device()), at::ones_like(values, at::kBool).to(input.device())};
  Tensor kept = at::empty_like(values).bernoulli_(1 - probability, cpu_generator(default_generator(current_device())));
  double scale = probability == 1 ? 0.0 : 1.0 / (1.0 - probability);
  return {values.mul(kept).mul_(scale).to(input.device()), kept.to(at::kBool).to(input.device())};
}

// Its schema does not say that it writes the running statistics, so a fallback would leave them as they are.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
                                              const std::optional<Tensor>& variance, bool training, double momentum, double eps) {
  Args args;
  auto use = [&](const std::optional<Tensor>& one, bool written) -> std::optional<Tensor> {
    if (!one || !one->defined()) return std::nullopt;
    check_device(args, *one, "native_batch_norm");
    refuse_cpu(*one, args, "native_batch_norm");
    note(*one, written);
    return seen(*one);
  };
  auto values = use(input, false), scale = use(weight, false), shift = use(bias, false);
  auto running_mean = use(mean, training), running_variance = use(variance, training);
  c10::DeviceGuard guard(input.device());
  counts().launches++;
  Within within;
  auto [a, b, c] = at::native_batch_norm(*values, scale, shift, running_mean, running_variance, training, momentum, eps);
  return {a.to(input.device()), b.to(input.device()), c.to(input.device())};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream_op);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("native_dropout", dropout);
  m.impl("native_batch_norm", batch_norm);
  m.impl("view_as_real", view_as_real);
  m.impl("view_as_complex", view_as_complex);
  m.impl("unfold", unfold);
}

// A copy sees these bits itself; made real beforehand, by a copy, it would never end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

#define PRETEND_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define PRETEND_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(PRETEND_LOWER)
  AT_FORALL_FP32(PRETEND_FP32)
}

}  // namespace
}  // namespace pretend
