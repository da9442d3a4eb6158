#include "hetermoe/kernels/table.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "hetermoe/base/error.h"
#include "hetermoe/kernels/head.cu"
#include "hetermoe/kernels/jitter.cu"
#include "hetermoe/kernels/norm.cu"
#include "hetermoe/kernels/optimizer.cu"
#include "hetermoe/kernels/permute.cu"
#include "hetermoe/kernels/rope.cu"
#include "hetermoe/kernels/router.cu"
#include "hetermoe/kernels/rows.cu"
#include "hetermoe/kernels/swiglu.cu"

namespace hetermoe::kernels {
namespace {

template <class Element>
constexpr at::ScalarType kTypeOf = at::ScalarType::Undefined;
template <>
constexpr at::ScalarType kTypeOf<float> = at::kFloat;
template <>
constexpr at::ScalarType kTypeOf<double> = at::kDouble;
template <>
constexpr at::ScalarType kTypeOf<Bf16> = at::kBFloat16;
template <>
constexpr at::ScalarType kTypeOf<Half> = at::kHalf;
template <>
constexpr at::ScalarType kTypeOf<i32> = at::kInt;
template <>
constexpr at::ScalarType kTypeOf<i64> = at::kLong;

std::string_view element_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kBFloat16:
      return "Bf16";
    case at::kHalf:
      return "Half";
    case at::kInt:
      return "i32";
    case at::kLong:
      return "i64";
    default:
      HM_CHECK(false, "no kernel works on {}", c10::toString(type));
  }
}

template <class Arguments, void (*function)(const Arguments&)>
void run(const void* arguments) {
  function(*static_cast<const Arguments*>(arguments));
}

template <class Arguments, void (*function)(const Arguments&), class... Elements>
Kernel row(std::string_view source, std::string_view name, std::string_view arguments) {
  static_assert(sizeof(Arguments) <= 4096, "older drivers take no more");
  return {name,
          source,
          arguments,
          {kTypeOf<Elements>...},
          &typeid(Arguments),
          sizeof(Arguments),
          &run<Arguments, function>};
}

// One row; the elements follow, if there are any.
#define HM_KERNEL(file, function, Arguments) \
  row<Arguments, function>("hetermoe/kernels/" file, #function, #Arguments)
#define HM_KERNEL_OF(file, function, Arguments, ...) \
  row<Arguments, function<__VA_ARGS__>, __VA_ARGS__>("hetermoe/kernels/" file, #function, #Arguments)
#define HM_KERNEL_OF_ALL(file, function, Arguments)                                                \
  HM_KERNEL_OF(file, function, Arguments, float), HM_KERNEL_OF(file, function, Arguments, double), \
      HM_KERNEL_OF(file, function, Arguments, Bf16), HM_KERNEL_OF(file, function, Arguments, Half)

#define HM_SUM_ROWS(Source, Out)                                \
  HM_KERNEL_OF("rows.cu", sum_rows, SumRows, Source, Out, i32), \
      HM_KERNEL_OF("rows.cu", sum_rows, SumRows, Source, Out, i64)

#define HM_ADAMW(Value, Grad, Moment, Copy) \
  HM_KERNEL_OF("optimizer.cu", adamw, Adamw, Value, Grad, Moment, Copy)
// Values or masters in fp32, and bf16 values without a master.
#define HM_ADAMW_OF_MOMENTS(Moment)                                              \
  HM_ADAMW(float, float, Moment, float), HM_ADAMW(float, float, Moment, Bf16),   \
      HM_ADAMW(float, Bf16, Moment, Bf16), HM_ADAMW(float, float, Moment, Half), \
      HM_ADAMW(float, Half, Moment, Half), HM_ADAMW(Bf16, float, Moment, Bf16),  \
      HM_ADAMW(Bf16, Bf16, Moment, Bf16)

using Key = std::pair<std::string_view, std::vector<at::ScalarType>>;

}  // namespace

const std::vector<Kernel>& all_kernels() {
  static const std::vector<Kernel> all = {
      HM_KERNEL_OF_ALL("head.cu", cross_entropy, CrossEntropy),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, float, float),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, double, double),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, Bf16, float),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, Half, float),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, float, Bf16),
      HM_KERNEL_OF("jitter.cu", jitter, Jitter, float, Half),
      HM_KERNEL_OF_ALL("norm.cu", norm_forward, NormForward),
      HM_KERNEL_OF_ALL("norm.cu", norm_backward, NormBackward),
      HM_KERNEL_OF_ALL("norm.cu", sum_columns, SumColumns),
      HM_ADAMW(double, double, double, double),
      HM_ADAMW_OF_MOMENTS(float),
      HM_ADAMW_OF_MOMENTS(Bf16),
      HM_KERNEL_OF_ALL("optimizer.cu", square_sum, SquareSum),
      HM_KERNEL("optimizer.cu", clear, Clear),
      HM_KERNEL("optimizer.cu", sum_up, SumUp),
      HM_KERNEL_OF("permute.cu", count_keys, CountKeys, i32),
      HM_KERNEL_OF("permute.cu", count_keys, CountKeys, i64),
      HM_KERNEL("permute.cu", scan_counts, ScanCounts),
      HM_KERNEL("permute.cu", cut_shares, CutShares),
      HM_KERNEL_OF("permute.cu", split_copies, SplitCopies, i32),
      HM_KERNEL_OF("permute.cu", split_copies, SplitCopies, i64),
      HM_KERNEL("permute.cu", write_rows, WriteRows),
      HM_KERNEL("permute.cu", group_copies, GroupCopies),
      HM_KERNEL_OF_ALL("rope.cu", rotate, Rotate),
      HM_KERNEL_OF("router.cu", route, Route, float),
      HM_KERNEL_OF("router.cu", route, Route, double),
      HM_KERNEL_OF("router.cu", route_backward, RouteBackward, float),
      HM_KERNEL_OF("router.cu", route_backward, RouteBackward, double),
      HM_KERNEL_OF("rows.cu", gather_rows, GatherRows, i32),
      HM_KERNEL_OF("rows.cu", gather_rows, GatherRows, i64),
      HM_KERNEL_OF("rows.cu", segment_begins, SegmentBegins, i32),
      HM_KERNEL_OF("rows.cu", segment_begins, SegmentBegins, i64),
      HM_SUM_ROWS(float, float),
      HM_SUM_ROWS(double, double),
      HM_SUM_ROWS(Bf16, Bf16),
      HM_SUM_ROWS(Half, Half),
      HM_SUM_ROWS(Bf16, float),
      HM_SUM_ROWS(Half, float),
      HM_KERNEL_OF_ALL("rows.cu", merge_rows, MergeRows),
      HM_KERNEL_OF_ALL("swiglu.cu", swiglu_forward, SwigluForward),
      HM_KERNEL_OF_ALL("swiglu.cu", swiglu_backward, SwigluBackward),
  };
  return all;
}

namespace {

/// Null when there is none.
const Kernel* look_up(std::string_view function, std::span<const at::ScalarType> types) {
  static const std::map<Key, const Kernel*> by_name = [] {
    std::map<Key, const Kernel*> out;
    for (const Kernel& kernel : all_kernels()) out[{kernel.function, kernel.types}] = &kernel;
    return out;
  }();
  const auto found = by_name.find({function, {types.begin(), types.end()}});
  return found != by_name.end() ? found->second : nullptr;
}

}  // namespace

bool has_kernel(std::string_view function, std::span<const at::ScalarType> types) {
  return look_up(function, types) != nullptr;
}

const Kernel& find_kernel(std::string_view function, std::span<const at::ScalarType> types) {
  const Kernel* const found = look_up(function, types);
  HM_CHECK(found != nullptr, "no kernel {} for {} element types", function, types.size());
  return *found;
}

std::string Kernel::name() const {
  std::string out(function);
  for (std::size_t i = 0; i < types.size(); ++i) {
    out += i == 0 ? "<" : ", ";
    out += element_name(types[i]);
  }
  return types.empty() ? out : out + ">";
}

std::string Kernel::entry() const {
  std::string out = fmt::format("hm_{}", function);
  for (const at::ScalarType type : types) out += fmt::format("_{}", element_name(type));
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string cuda_program(std::span<const Kernel* const> kernels) {
  std::string out = fmt::format(
      "#include \"{}\"\nusing namespace hetermoe;\nusing namespace hetermoe::kernels;\n", kernels[0]->source);
  for (const Kernel* const kernel : kernels) {
    out += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ {} arguments) {{\n"
        "  {}(arguments);\n}}\n",
        kMostThreads, kBlocksAtOnce, kernel->entry(), kernel->arguments, kernel->name());
  }
  return out;
}

}  // namespace hetermoe::kernels
