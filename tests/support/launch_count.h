#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hetermoe/kernels/launch.h"

// How many kernels a GPU would be given by what runs on a CPU here: one for every operator of libtorch that
// is not made of others and does more than to look at a tensor in another way, and one for every product of
// our own. A sort counts as six, the backward of attention as three.
namespace hetermoe::testing {

class OperatorCount {
 public:
  OperatorCount() {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}).needsIds(false));
  }
  ~OperatorCount() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  OperatorCount(const OperatorCount&) = delete;
  OperatorCount& operator=(const OperatorCount&) = delete;

  /// What the calling thread counts belongs to this from here on.
  static void label(const std::string& name) { label_of_thread() = name; }
  /// By label, then by operator.
  std::map<std::string, std::map<std::string, i64>> counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  static OperatorCount*& current() {
    static OperatorCount* one = nullptr;
    return one;
  }
  static std::string& label_of_thread() {
    thread_local std::string name;
    return name;
  }
  /// Whether an operator that runs has run others which launch something.
  static std::vector<char>& running() {
    thread_local std::vector<char> launches_inside;
    return launches_inside;
  }
  static bool only_looks(const std::string& name) {
    static const std::set<std::string> names = {"aten::alias",
                                                "aten::as_strided",
                                                "aten::contiguous",
                                                "aten::detach",
                                                "aten::empty",
                                                "aten::empty_like",
                                                "aten::empty_strided",
                                                "aten::expand",
                                                "aten::flatten",
                                                "aten::item",
                                                "aten::narrow",
                                                "aten::numpy_T",
                                                "aten::permute",
                                                "aten::reshape",
                                                "aten::resize_",
                                                "aten::resolve_conj",
                                                "aten::resolve_neg",
                                                "aten::select",
                                                "aten::slice",
                                                "aten::split",
                                                "aten::split_with_sizes",
                                                "aten::squeeze",
                                                "aten::t",
                                                "aten::to",
                                                "aten::transpose",
                                                "aten::unsqueeze",
                                                "aten::view",
                                                "aten::view_as",
                                                "aten::_reshape_alias",
                                                "aten::_unsafe_view",
                                                "aten::is_pinned",
                                                "aten::result_type",
                                                "aten::set_",
                                                "aten::unbind",
                                                "aten::_local_scalar_dense",
                                                "aten::detach_",
                                                "aten::new_empty",
                                                "aten::unflatten",
                                                "aten::new_empty_strided",
                                                "aten::lift_fresh"};
    return names.contains(name);
  }
  /// Operators that are other kernels on a GPU than on a CPU: how many there.
  static i64 whole(const std::string& name) {
    static const std::map<std::string, i64> counts = {
        {"aten::sort", 6},
        {"hetermoe::product", 1},
        {"aten::_scaled_dot_product_flash_attention_for_cpu", 1},
        {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 3}};
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  }
  static i64& inside_whole() {
    thread_local i64 depth = 0;
    return depth;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    running().push_back(0);
    if (whole(function.name()) > 0) ++inside_whole();
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    std::vector<char>& stack = running();
    if (stack.empty()) return;
    const bool inside = stack.back() != 0;
    stack.pop_back();
    const std::string name = function.name();
    const i64 of_whole = whole(name);
    const bool launches = inside || of_whole > 0 || (name.starts_with("aten::") && !only_looks(name));
    if (launches && !stack.empty()) stack.back() = 1;
    if (of_whole > 0) --inside_whole();
    if (!launches || (inside && of_whole == 0) || inside_whole() > 0 || current() == nullptr) return;
    const std::lock_guard lock(current()->mutex_);
    current()->counts_[label_of_thread()][name] += std::max<i64>(1, of_whole);
  }

  at::CallbackHandle handle_;
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, i64>> counts_;
};

}  // namespace hetermoe::testing
