#include "hetermoe/balance/asym_ea.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

/// floor(layers * gap / squeeze) may not overflow: nanoseconds of hours times hundreds of experts do.
using Wide = __int128;

i64 floor_product(i64 count, const Fraction& rate) {
  return static_cast<i64>(static_cast<Wide>(count) * rate.numerator / rate.denominator);
}

std::string unfit(const AsymEaInput& in) {
  const i64 m = in.num_attention, n = in.num_expert_devices;
  if (in.num_experts % n != 0)
    return fmt::format("{} experts do not divide evenly over {} devices", in.num_experts, n);
  if (m % n != 0 && n % m != 0)
    return fmt::format("of {} attention and {} expert devices neither number divides the other", m, n);
  return "";
}

/// Chunks per layer at `rate`, late layers getting the carry; then the rest of `least` where room is left.
std::vector<i64> chunks_of_layers(i64 num_layers, const Fraction& rate, i64 cap, i64 least) {
  std::vector<i64> chunks;
  i64 given = 0;
  for (i64 l = 1; l <= num_layers; ++l) {
    chunks.push_back(std::min(floor_product(l, rate) - given, cap));
    given += chunks.back();
  }
  for (std::size_t l = chunks.size(); l-- > 0 && given < least;) {
    const i64 more = std::min(least - given, cap - chunks[l]);
    chunks[l] += more;
    given += more;
  }
  return chunks;
}

}  // namespace

i64 total_chunks(const AsymEaResult& result) {
  const i64 moved = std::accumulate(result.moved.begin(), result.moved.end(), i64{0});
  return moved > 0 ? moved / result.chunk_given : 0;
}

AsymEaResult gather_and_squeeze(const AsymEaInput& in, std::optional<i64> chunks) {
  HM_CHECK(in.num_layers > 0 && in.num_experts > 0 && in.num_attention > 0 && in.num_expert_devices > 0,
           "asym-ea needs layers, experts and devices");
  HM_CHECK(in.attention_ns >= 0 && in.local_expert_ns >= 0 && in.expert_ns >= 0, "negative time");
  AsymEaResult result;
  result.infeasible = unfit(in);
  if (!result.infeasible.empty()) return result;
  const i64 layers = in.num_layers, n = in.num_experts, devices = in.num_expert_devices;
  const i64 received = std::max<i64>(1, devices / in.num_attention);
  const i64 given = received * in.num_attention / devices;
  result.chunk_received = received;
  result.chunk_given = given;
  // One expert costs T * devices / n on its device.
  const i64 squeeze = devices * (in.expert_ns * given + in.local_expert_ns * received);
  const i64 divisor = std::max<i64>(1, std::gcd(squeeze, n));
  result.squeeze_ns = {squeeze / divisor, n / divisor};

  const i64 cap = n / devices / given;  // chunks that a layer can give
  const i64 leave = in.expert_capacity ? std::max<i64>(0, layers * n - devices * *in.expert_capacity) : 0;
  const i64 least = ceil_div(leave, given * devices);
  const i64 most = in.attention_capacity ? *in.attention_capacity / received : layers * cap;
  if (least > std::min(most, layers * cap)) {
    result.infeasible = fmt::format(
        "{} of {} experts do not fit on the expert devices, and the attention devices hold at most {}", leave,
        layers * n, std::min(most, layers * cap) * given * devices);
    return result;
  }
  const i64 gap = in.expert_ns - in.attention_ns;
  Fraction rate = gap > 0 && squeeze > 0 ? Fraction{n * gap, squeeze} : Fraction{0, 1};
  // Half a chunk above the total, so that the first chunk does not wait for the last layer.
  if (chunks) rate = {2 * *chunks + 1, 2 * layers};
  const i64 wanted = floor_product(layers, rate);
  if (wanted < least) rate = {least, layers};
  if (wanted > most) rate = {most, layers};
  for (const i64 of_layer : chunks_of_layers(layers, rate, cap, least))
    result.moved.push_back(of_layer * given);
  return result;
}

namespace {

/// Each owner gives the last `moved` experts of its run to the devices of `to`, in turn.
void move_experts(LayerOwners& owners, i64 moved, const std::vector<DeviceId>& to) {
  std::size_t next = 0;
  for (std::size_t begin = 0, end; begin < owners.size(); begin = end) {
    end = begin;
    while (end < owners.size() && owners[end][0].device == owners[begin][0].device) ++end;
    const std::size_t give = std::min(idx(moved), end - begin);
    for (std::size_t e = end - give; e < end; ++e)
      owners[e] = {{.device = to[next++ % to.size()], .share = 1}};
  }
}

}  // namespace

std::vector<LayerOwners> place_asym_ea(const BalanceInput& input) {
  HM_CHECK(input.moved.size() == input.load.size(), "asym_ea needs a number of experts for every layer");
  std::vector<DeviceId> receivers;
  for (const BalanceDevice& device : input.devices) {
    if (!device.owns) receivers.push_back(device.id);
  }
  const bool moves = std::any_of(input.moved.begin(), input.moved.end(), [](i64 moved) { return moved > 0; });
  HM_CHECK(!moves || !receivers.empty(), "asym_ea needs devices that own no experts");
  std::vector<LayerOwners> layers = find_balancer("proportional").place(input);
  for (std::size_t l = 0; l < layers.size(); ++l) move_experts(layers[l], input.moved[l], receivers);
  return layers;
}

}  // namespace hetermoe
