#include "hetermoe/train/job/router_training.h"

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

void refuse_both(const char* key, const char* other, const char* why) {
  fail<ConfigError>(std::string("train.") + key, "cannot go with {}, {}: leave one of both out", other, why);
}

}  // namespace

void check_router_training(const Job& job, const ModelConfig& model) {
  const TrainOptions& train = job.train;
  const auto refuse_dense = [&](const char* key, bool on) {
    if (on && model.num_moe_layers() == 0)
      fail<ConfigError>(std::string("train.") + key, "model {} has no routers: leave it out", model.name);
  };
  refuse_dense("router_z_loss", train.router_z_loss > 0);
  refuse_dense("router_jitter", train.router_jitter > 0);
  refuse_dense("capacity_factor", train.capacity_factor > 0);
  refuse_dense("forced_balance", train.forced_balance);
  const bool replays = !job.routing.replay.empty();
  if (train.router_jitter > 0 && replays)
    refuse_both("router_jitter", "routing.replay", "whose choices no noise changes");
  if (!train.forced_balance) return;
  if (replays) refuse_both("forced_balance", "routing.replay", "which gives other choices");
  if (train.router_bias_rate > 0)
    refuse_both("forced_balance", "train.router_bias_rate", "whose biases no choice hangs on");
}

std::string balance_note(const Job& job, const ModelConfig& model) {
  const TrainOptions& train = job.train;
  if (model.aux_loss_coef > 0 && !train.init_from.empty() && train.aux_group > 0 &&
      train.aux_group < train.sequences) {
    const std::string group =
        train.aux_group == 1 ? "each sequence" : fmt::format("groups of {} sequences", train.aux_group);
    return fmt::format(
        "the load-balancing loss is computed over {}, where transformers takes all sequences of a forward "
        "pass: train.aux_group 0 takes those of the step",
        group);
  }
  const bool balances = model.aux_loss_coef > 0 || job.train.router_bias_rate > 0 || job.train.forced_balance;
  if (balances || model.num_moe_layers() == 0) return "";
  const Json config = read_json(find_model(job.model));
  const auto alpha = config.find("aux_loss_alpha");
  if (alpha == config.end() || !alpha->is_number() || alpha->get<double>() <= 0) return "";
  return fmt::format(
      "aux_loss_alpha {} in the config of {} is ignored, as in transformers, so nothing balances the "
      "experts. To balance them, give the config router_aux_loss_coef (with train.aux_group 1: of "
      "each sequence){}",
      alpha->get<double>(), model.name, model.router_bias ? ", or set train.router_bias_rate 0.001" : "");
}

RouterTraining router_training(const TrainOptions& train, i64 step, i64 first_sequence) {
  return {.z_loss = train.router_z_loss,
          .jitter = train.router_jitter,
          .capacity_factor = train.capacity_factor,
          .seed = train.seed,
          .step = step,
          .first_sequence = first_sequence};
}

std::vector<at::Tensor> forced_choices(const TrainOptions& train, const ModelConfig& model,
                                       i64 first_sequence) {
  std::vector<at::Tensor> out;
  if (!train.forced_balance) return out;
  const i64 copies_before = first_sequence * train.seq_len * model.top_k;
  const at::Tensor ids =
      (at::arange(train.sequences * train.seq_len * model.top_k, at::kLong) + copies_before)
          .remainder(model.num_experts)
          .view({train.sequences, train.seq_len, model.top_k});
  for (i64 l = 0; l < model.num_layers; ++l) out.push_back(model.is_moe(l) ? ids : at::Tensor());
  return out;
}

}  // namespace hetermoe
