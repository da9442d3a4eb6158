#include <fmt/format.h>
#include <numeric>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/plan.h"

// In which dtypes the parameters of a plan live.
namespace hetermoe {

const std::vector<std::string>& EnumNames<Master>::names() {
  static const std::vector<std::string> all = names_of_all<Master>({"fp32", "none"});
  return all;
}
const std::vector<std::string>& EnumNames<WireReduce>::names() {
  static const std::vector<std::string> all = names_of_all<WireReduce>({"fp32", "bf16"});
  return all;
}

Dtype grad_dtype_of(const Plan& plan, DeviceId device) {
  if (plan.grad_dtype) return *plan.grad_dtype;
  return plan.dtype[static_cast<std::size_t>(device)] == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32;
}

Dtype reduce_dtype_of(const Plan& plan, DeviceId device) {
  return plan.wire_reduce == WireReduce::kBf16 ? Dtype::kBf16 : grad_dtype_of(plan, device);
}

OptimizerWidths optimizer_widths(Master master, std::optional<Dtype> moments_dtype) {
  return {.master = master == Master::kFp32, .moment = bytes_of(moments_dtype.value_or(Dtype::kFp32))};
}

StateBytes state_bytes_of(const Plan& plan, DeviceId device) {
  return state_bytes_per_parameter(bytes_of(plan.dtype[idx(device)]), bytes_of(grad_dtype_of(plan, device)),
                                   optimizer_widths_of(plan));
}

DeviceId user_of_host(const Plan& plan, NodeId node) {
  const std::vector<std::string> roles = roles_of(plan);
  DeviceId idle = -1;
  for (DeviceId device = 0; device < static_cast<DeviceId>(plan.hosts.size()); ++device) {
    if (plan.hosts[idx(device)] != node) continue;
    if (roles[idx(device)] != "idle") return device;
    if (idle < 0) idle = device;
  }
  return idle;
}

void take_dtypes(Plan& plan, const Plan& from) {
  plan.dtype = from.dtype;
  plan.wire_forward = from.wire_forward, plan.wire_backward = from.wire_backward;
  plan.master = from.master, plan.moments_dtype = from.moments_dtype, plan.grad_dtype = from.grad_dtype;
  plan.wire_reduce = from.wire_reduce, plan.error_feedback = from.error_feedback;
}

namespace {

/// Idle ones have no parameters. Of a plan that has dtypes alone so far, all.
std::vector<std::size_t> devices_at_work(const Plan& plan) {
  const std::vector<std::string> roles = roles_of(plan);
  std::vector<std::size_t> out;
  for (std::size_t d = 0; d < roles.size(); ++d) {
    if (roles[d] != "idle") out.push_back(d);
  }
  if (out.empty()) {
    out.resize(plan.dtype.size());
    std::iota(out.begin(), out.end(), std::size_t{0});
  }
  return out;
}

std::optional<std::string> grad_dtype_fault(const Plan& plan) {
  if (!plan.grad_dtype) return {};
  for (const std::size_t d : devices_at_work(plan)) {
    const bool fits = bytes_of(*plan.grad_dtype) == bytes_of(plan.dtype[d]) ||
                      (*plan.grad_dtype == Dtype::kFp32 && bytes_of(plan.dtype[d]) == 2);
    if (fits) continue;
    return fmt::format("[grad_dtype] got {}, but device {} has parameters in {}: expected {}",
                       name_of(*plan.grad_dtype), d, name_of(plan.dtype[d]),
                       bytes_of(plan.dtype[d]) == 2 ? "fp32, bf16 or fp16" : name_of(plan.dtype[d]));
  }
  return {};
}

std::optional<std::string> wire_reduce_fault(const Plan& plan) {
  if (plan.wire_reduce == WireReduce::kFp32) return {};
  for (const std::size_t d : devices_at_work(plan)) {
    const Dtype kept = grad_dtype_of(plan, static_cast<DeviceId>(d));
    if (bytes_of(kept) > 2) continue;
    return fmt::format(
        "[wire_reduce] got {}, but device {} keeps gradients in {}, and they travel so: expected wire_reduce "
        "fp32, or grad_dtype fp32",
        name_of(plan.wire_reduce), d, name_of(kept));
  }
  return {};
}

std::optional<std::string> feedback_fault(const Plan& plan) {
  if (!plan.error_feedback) return {};
  if (plan.wire_reduce == WireReduce::kFp32)
    return "[error_feedback] got true, but gradients travel as they are kept and lose nothing: expected "
           "wire_reduce bf16";
  if (shards_weights(plan))
    return "[error_feedback] got true, but weights are sharded: a device would keep what all of a weight's "
           "gradients lose, and has no room for whole weights. Expected shard_optimizer instead, or false";
  for (const std::size_t d : devices_at_work(plan)) {
    if (plan.dtype[d] != Dtype::kFp16) continue;
    return fmt::format(
        "[error_feedback] got true, but device {} computes in fp16: what is kept has the loss scale of its "
        "step, and that changes. Expected bf16 or fp32",
        d);
  }
  return {};
}

std::optional<std::string> master_fault(const Plan& plan) {
  if (plan.master == Master::kFp32) return {};
  for (const std::size_t d : devices_at_work(plan)) {
    if (plan.dtype[d] == Dtype::kBf16) continue;
    return fmt::format(
        "[master] got none, but device {} has parameters in {}: expected bf16 on all devices, which can be "
        "rounded stochastically",
        d, name_of(plan.dtype[d]));
  }
  return {};
}

std::optional<std::string> moments_fault(const Plan& plan) {
  if (!plan.moments_dtype) return {};
  if (*plan.moments_dtype != Dtype::kBf16 && *plan.moments_dtype != Dtype::kFp32)
    return fmt::format("[moments_dtype] got {}, expected fp32 or bf16", name_of(*plan.moments_dtype));
  for (const std::size_t d : devices_at_work(plan)) {
    if (plan.dtype[d] == Dtype::kFp64)
      return fmt::format(
          "[moments_dtype] got {}, but device {} has parameters in fp64, which keep moments in fp64",
          name_of(*plan.moments_dtype), d);
  }
  return {};
}

}  // namespace

std::vector<std::string> dtype_faults(const Plan& plan) {
  std::vector<std::string> faults;
  for (const std::optional<std::string>& fault :
       {grad_dtype_fault(plan), wire_reduce_fault(plan), feedback_fault(plan), master_fault(plan),
        moments_fault(plan)}) {
    if (fault) faults.push_back(*fault);
  }
  return faults;
}

}  // namespace hetermoe
