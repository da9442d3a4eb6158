#include "hetermoe/kernels/table.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/error.h"
#include "hetermoe/kernels/swiglu.cu"

namespace hetermoe::kernels {
namespace {

template <class Element>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr at::ScalarType value = at::kFloat;
};
template <>
struct TypeOf<double> {
  static constexpr at::ScalarType value = at::kDouble;
};
template <>
struct TypeOf<Bf16> {
  static constexpr at::ScalarType value = at::kBFloat16;
};
template <>
struct TypeOf<Half> {
  static constexpr at::ScalarType value = at::kHalf;
};

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
  return {name,
          source,
          arguments,
          {TypeOf<Elements>::value...},
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

using Key = std::pair<std::string_view, std::vector<at::ScalarType>>;

}  // namespace

const std::vector<Kernel>& all_kernels() {
  static const std::vector<Kernel> all = {
      HM_KERNEL_OF_ALL("swiglu.cu", swiglu_forward, SwigluForward),
      HM_KERNEL_OF_ALL("swiglu.cu", swiglu_backward, SwigluBackward),
  };
  return all;
}

const Kernel& find_kernel(std::string_view function, std::span<const at::ScalarType> types) {
  static const std::map<Key, const Kernel*> by_name = [] {
    std::map<Key, const Kernel*> out;
    for (const Kernel& kernel : all_kernels()) out[{kernel.function, kernel.types}] = &kernel;
    return out;
  }();
  const auto found = by_name.find({function, {types.begin(), types.end()}});
  HM_CHECK(found != by_name.end(), "no kernel {} for {} element types", function, types.size());
  return *found->second;
}

std::string Kernel::name() const {
  std::string out(function);
  for (std::size_t i = 0; i < types.size(); ++i) {
    out += i == 0 ? "<" : ", ";
    out += element_name(types[i]);
  }
  return types.empty() ? out : out + ">";
}

std::string cuda_program(std::span<const Kernel* const> kernels) {
  std::string out = fmt::format("#include \"{}\"\nusing namespace hetermoe::kernels;\n", kernels[0]->source);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    out += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({}) kernel_{}(const __grid_constant__ {} arguments) "
        "{{\n"
        "  {}(arguments);\n}}\n",
        kMostThreads, i, kernels[i]->arguments, kernels[i]->name());
  }
  return out;
}

}  // namespace hetermoe::kernels
