#include "tests/gpus/fake_gpus.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "tests/gpus/stream_clocks.h"

namespace hetermoe::testing {
namespace {

using namespace fake;

// ---- Devices, streams, events ----

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kGpu, std::exchange(current_gpu, device.index())};
  }
  c10::Device getDevice() const override { return {kGpu, current_gpu}; }
  void setDevice(c10::Device device) const override { current_gpu = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_gpu = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex gpu = device.has_index() ? device.index() : current_gpu;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kGpu, gpu), current_streams[idx(gpu)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, {kGpu, device.has_index() ? device.index() : current_gpu}, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    World& w = world();
    const std::lock_guard lock(w.mutex);
    i32& next = w.next_pooled[2 * idx(device.index()) + (high ? 1 : 0)];
    return c10::Stream(c10::Stream::UNSAFE, device, 1 + (high ? kPooled : 0) + next++ % kPooled);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[idx(stream.device_index())] = static_cast<i32>(stream.id());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeGpus; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    const std::lock_guard lock(world().mutex);
    if (*event == nullptr) *event = new FakeEvent;
    auto& own = *static_cast<FakeEvent*>(*event);
    own = {.clock = world().clocks[index_of(stream)], .queries = 0};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(world().mutex);
    const auto* const own = static_cast<FakeEvent*>(event);
    if (own != nullptr && own->clock) merge(world().clocks[index_of(stream)], *own->clock);
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(world().mutex);
    auto* const own = static_cast<FakeEvent*>(event);
    if (own == nullptr || !own->clock) return true;
    const bool known = std::equal(own->clock->begin(), own->clock->end(), world().ended.begin(),
                                  [](u64 wanted, u64 ended) { return ended >= wanted; });
    if (!known && ++own->queries < kQueriesUntilPassed) return false;
    host_knows(*own->clock);
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  void synchronizeEvent(void* event) const override {
    const std::lock_guard lock(world().mutex);
    const auto* const own = static_cast<FakeEvent*>(event);
    if (own != nullptr && own->clock) host_knows(*own->clock);
  }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override {
    const std::lock_guard lock(world().mutex);
    host_waits(index_of(stream), full_name("synchronize"));
  }
  void synchronizeDevice(c10::DeviceIndex gpu) const override {
    const std::lock_guard lock(world().mutex);
    for (i32 s = 0; s < kStreams; ++s) host_knows(world().clocks[idx(gpu) * kStreams + idx(s)]);
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 1; }
};

// ---- Memory ----

struct Block {
  at::DataPtr bytes;
};

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const block = new Block{c10::GetCPUAllocator()->allocate(bytes)};
    const std::lock_guard lock(world().mutex);
    take_memory(block->bytes.get(), bytes, stream_of(current_gpu));
    return {block->bytes.get(), block, &Allocator::drop, c10::Device(kGpu, current_gpu)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Allocator::drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static void drop(void* context) {
    auto* const block = static_cast<Block*>(context);
    give_back(block->bytes.get());
    delete block;
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const block = new Block{c10::GetCPUAllocator()->allocate(bytes)};
    const std::lock_guard lock(world().mutex);
    world().pinned.insert(block->bytes.get());
    return {block->bytes.get(), block, &PinnedAllocator::drop, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static void drop(void* context) {
    auto* const block = static_cast<Block*>(context);
    {
      const std::lock_guard lock(world().mutex);
      world().pinned.erase(block->bytes.get());
    }
    delete block;
  }
};

Allocator& allocator() {
  static auto* const one = new Allocator;
  return *one;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(world().mutex);
    return world().all_pinned || world().pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const one = new PinnedAllocator;
    return one;
  }
  c10::DeviceIndex deviceCount() const override { return kFakeGpus; }
  c10::DeviceIndex getCurrentDevice() const override { return current_gpu; }
  void setCurrentDevice(c10::DeviceIndex gpu) const override { current_gpu = gpu; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex gpu) const override {
    return std::exchange(current_gpu, gpu);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex gpu) const override { return exchangeDevice(gpu); }
};

// ---- Operations: those of the CPU, on the same memory ----

bool is_on_gpu(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kGpu; }

at::Tensor with_storage(const at::Tensor& like, c10::Storage storage, c10::DispatchKeySet keys) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

/// The same memory as a tensor of a CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  auto* const keep = new c10::Storage(tensor.storage());
  c10::DataPtr data(
      tensor.storage().mutable_data(), keep,
      [](void* context) { delete static_cast<c10::Storage*>(context); }, c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr,
                       /*resizable=*/false);
  return with_storage(tensor, std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU));
}

/// A tensor that an operation of the CPU made, as one of a GPU.
at::Tensor on_gpu(const at::Tensor& made, c10::DeviceIndex gpu) {
  auto* const keep = new c10::Storage(made.storage());
  const auto drop = [](void* context) {
    auto* const kept = static_cast<c10::Storage*>(context);
    give_back(kept->data());
    delete kept;
  };
  c10::DataPtr data(made.storage().mutable_data(), keep, drop, c10::Device(kGpu, gpu));
  c10::Storage storage(c10::Storage::use_byte_size_t(), made.storage().nbytes(), std::move(data),
                       &allocator(), /*resizable=*/false);
  return with_storage(made, std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1));
}

/// One call of an operation: its tensors of a GPU become tensors of the CPU.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op), name_(full_name(op.schema().name().substr(6))) {}

  void lower(c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      value = lower(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(lower(tensor, writes));
      value = all;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
        all.push_back(tensor ? std::optional(lower(*tensor, writes)) : tensor);
      value = all;
    } else if (value.isDevice() && value.toDevice().type() == kGpu) {
      place_on(value.toDevice().index());
      value = c10::Device(c10::DeviceType::CPU);
    }
  }

  /// To be called when all arguments are lowered.
  void begin() {
    World& w = world();
    const std::lock_guard lock(w.mutex);
    HM_CHECK(gpu_ >= 0, "{} has no tensor of a GPU", name_);
    stream_ = stream_of(gpu_);
    ++w.clocks[stream_][stream_];
    for (const Argument& argument : arguments_) touch(argument.gpu, stream_, argument.writes, name_);
  }

  /// Results that the operation was given and has made larger.
  void take_grown() {
    for (Argument& argument : arguments_) {
      if (!argument.writes || argument.cpu.sizes().equals(argument.gpu.sizes())) continue;
      const at::Tensor grown = made_here(argument.cpu);
      c10::TensorImpl& impl = *argument.gpu.unsafeGetTensorImpl();
      impl.set_storage_keep_dtype(grown.storage());
      impl.set_sizes_and_strides(grown.sizes(), grown.strides());
    }
  }

  void raise(c10::IValue& value) {
    if (value.isTensor()) {
      value = raise(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(raise(tensor));
      value = all;
    } else {  // a number for the host
      const std::lock_guard lock(world().mutex);
      host_waits(stream_, name_);
    }
  }

 private:
  struct Argument {
    at::Tensor gpu, cpu;
    bool writes;
  };

  void place_on(c10::DeviceIndex gpu) {
    TORCH_CHECK(gpu_ < 0 || gpu_ == gpu, name_, " has tensors of GPU ", gpu_, " and of GPU ", gpu);
    gpu_ = gpu;
  }
  at::Tensor lower(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined()) return tensor;
    if (!is_on_gpu(tensor)) {
      TORCH_CHECK(tensor.dim() == 0, name_, " has tensors of a GPU and of the CPU");
      return tensor;
    }
    place_on(tensor.device().index());
    const bool may_grow = writes && tensor.storage().nbytes() == 0;
    arguments_.push_back(
        {tensor, may_grow ? at::empty(tensor.sizes(), tensor.scalar_type()) : on_cpu(tensor), writes});
    return arguments_.back().cpu;
  }
  at::Tensor raise(const at::Tensor& made) {
    if (!made.defined()) return made;
    for (const Argument& argument : arguments_) {
      if (made.is_same(argument.cpu)) return argument.gpu;
      if (made.has_storage() && made.storage().data() != nullptr &&
          made.storage().data() == argument.cpu.storage().data())
        return with_storage(made, argument.gpu.storage(), argument.gpu.key_set());
    }
    return made_here(made);
  }
  at::Tensor made_here(const at::Tensor& made) {
    at::Tensor raised = on_gpu(made, gpu_);
    const std::lock_guard lock(world().mutex);
    take_memory(raised.storage().data(), raised.storage().nbytes(), stream_);
    touch(raised, stream_, /*writes=*/true, name_);
    return raised;
  }

  const c10::OperatorHandle& op_;
  std::string name_;
  std::vector<Argument> arguments_;
  c10::DeviceIndex gpu_ = -1;
  std::size_t stream_ = 0;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  Call call(op);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    call.lower((*stack)[first + i], alias != nullptr && alias->isWrite());
  }
  call.begin();
  op.callBoxed(stack);
  call.take_grown();
  const std::size_t results = stack->size() - schema.returns().size();
  for (std::size_t i = results; i < stack->size(); ++i) call.raise((*stack)[i]);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

void poison(const at::Tensor& tensor) {
  if (at::isFloatingType(tensor.scalar_type()))
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    tensor.fill_(tensor.scalar_type() == at::kBool ? 1 : 0x55);
}

/// As CUDA copies: between GPUs on the stream of the source, and both wait for each other.
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from_given, bool non_blocking) {
  const at::Tensor from = from_given.expand_as(to);
  if (to.numel() == 0) return to;
  const bool gpu_reads = is_on_gpu(from), gpu_writes = is_on_gpu(to);
  const std::size_t stream = stream_of((gpu_reads ? from : to).device().index());
  const bool pinned = !gpu_reads ? from.is_pinned() : !gpu_writes && to.is_pinned();
  const std::string name = full_name("copy_");
  World& w = world();
  const at::Tensor target = gpu_writes ? on_cpu(to) : to, source = gpu_reads ? on_cpu(from) : from;
  const std::lock_guard lock(w.mutex);
  const bool both = gpu_reads && gpu_writes;
  const std::size_t other = both ? stream_of(to.device().index()) : stream;
  if (other != stream) merge(w.clocks[stream], w.clocks[other]);
  const u64 tick = ++w.clocks[stream][stream];
  if (gpu_reads) touch(from, stream, /*writes=*/false, name);
  if (gpu_writes) touch(to, stream, /*writes=*/true, name);
  if (other != stream) merge(w.clocks[other], w.clocks[stream]);
  if (gpu_reads && !gpu_writes && non_blocking && pinned) {
    w.late.push_back({stream, tick, to, source.to(to.scalar_type(), false, /*copy=*/true)});
    poison(to);
    return to;
  }
  if (gpu_writes && !gpu_reads && non_blocking && pinned)
    w.late_reads.push_back({stream, tick, source, source.clone(), name});
  target.copy_(source);
  if (!both && !(non_blocking && pinned)) host_waits(stream, name);
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  {
    const std::lock_guard lock(world().mutex);
    const std::size_t stream = stream_of(self.device().index());
    ++world().clocks[stream][stream];
    touch(self, stream, /*writes=*/false, full_name("item"));
    host_waits(stream, full_name("item"));
  }
  return on_cpu(self).item();
}

const bool is_registered = [] {
  c10::register_privateuse1_backend("fake_gpu");
  c10::SetAllocator(kGpu, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

c10::Device fake_gpu(i32 index) {
  HM_CHECK(is_registered && index < kFakeGpus, "there are {} GPUs", kFakeGpus);
  return {kGpu, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace hetermoe::testing
