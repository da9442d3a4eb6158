#include "hetermoe/base/enum_count.h"
#include "hetermoe/plan/plan.h"

// Plans as text.
namespace hetermoe {

const std::vector<std::string>& EnumNames<OrderPolicy>::names() {
#define HM_NAME(policy, name) #name,
  static const std::vector<std::string> all = names_of_all<OrderPolicy>({HM_ORDER_POLICIES(HM_NAME)});
#undef HM_NAME
  return all;
}
const std::vector<std::string>& EnumNames<QueueBinding>::names() {
  static const std::vector<std::string> all = names_of_all<QueueBinding>({"direction", "name", "phase"});
  return all;
}
const std::vector<std::string>& EnumNames<WeightGradients>::names() {
  static const std::vector<std::string> all = names_of_all<WeightGradients>({"with", "after"});
  return all;
}

Json to_json(const Plan& plan) {
  Json json = write_fields(plan);
  // Plans that ask for nothing keep their text.
  if (!plan.grad_dtype) json.erase("grad_dtype");
  if (!plan.moments_dtype) json.erase("moments_dtype");
  if (plan.wire_reduce == WireReduce::kFp32) json.erase("wire_reduce");
  if (!plan.error_feedback) json.erase("error_feedback");
  if (plan.master == Master::kFp32) json.erase("master");
  if (!plan.shard_optimizer) json.erase("shard_optimizer");
  if (plan.weight_gradients == WeightGradients::kWith) json.erase("weight_gradients");
  if (!plan.expected) json.erase("expected");
  if (plan.combine_to == CombineTo::kSource) json.erase("combine_to");
  if (plan.hosts.empty()) json.erase("hosts");
  if (plan.row_nodes.empty()) json.erase("row_nodes");
  if (plan.nics.empty()) json.erase("nics");
  if (plan.guest_slots == 0) {
    for (const char* key : {"guest_slots", "guest_depth", "guest_cost"}) json.erase(key);
  }
  if (plan.slots == VisitSlots{}) json.erase("slots");
  const auto drop_null = [](Json& of, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (of[key].is_null()) of.erase(key);
    }
  };
  for (Json& group : json["groups"]) {
    drop_null(group, {"embed_home", "head_home"});
    for (Json& layer : group["layers"]) {
      drop_null(layer, {"attention_home", "experts_home", "recompute"});
      if (layer["attention_backward"].empty()) layer.erase("attention_backward");
      if (layer["experts_at"] == "owners") layer.erase("experts_at");
      if (layer["saved"] == "device") layer.erase("saved");
    }
  }
  return json;
}

namespace {

/// Numbers from a file are added up and multiplied before a plan is held against a model.
void check_sizes(const Plan& plan, const std::string& where) {
  constexpr i64 kMostTokens = 100'000'000, kMostSequences = 1'000'000;
  const auto check = [&](const std::string& key, i64 got, i64 most) {
    if (got > most) fail<ConfigError>(where + " " + key, "got {}, expected at most {}", got, most);
  };
  const auto check_shares = [&](const std::string& key, const Shares& shares) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) {
        check(key, share.sequences, kMostSequences);
        check(key, share.tokens, kMostTokens);
        check(key, share.heads, kMostTokens);
      }
    }
  };
  check("seq_len", plan.seq_len, kMostTokens);
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    const std::string key = fmt::format("groups[{}].", g);
    for (const i64 size : group.microbatches) check(key + "microbatches", size, kMostSequences);
    check_shares(key + "embed", group.embed);
    check_shares(key + "head", group.head);
    for (const LayerPlacement& layer : group.layers) {
      check_shares(key + "layers", layer.attention);
      check_shares(key + "layers", layer.attention_backward);
    }
  }
}

}  // namespace

void drop_retired_keys(Json& plan, const std::string& place) {
  const auto lag = plan.is_object() ? plan.find("combine_lag") : plan.end();
  if (lag == plan.end()) return;
  if (*lag != 0)
    fail<ConfigError>(place + "combine_lag",
                      "got {}: a queue that all transfers share is gone. Remove the key", lag->dump());
  plan.erase(lag);
}

Plan plan_from_json(const Json& json, const std::string& where) {
  Plan plan;
  Json kept = json;
  drop_retired_keys(kept, where + " ");
  read_fields(kept, plan, where + " ");
  check_sizes(plan, where);
  return plan;
}

}  // namespace hetermoe
