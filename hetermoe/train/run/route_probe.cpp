#include "hetermoe/train/run/route_probe.h"

#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"

namespace hetermoe {

std::vector<std::vector<double>> copies_of_choices(const std::vector<at::Tensor>& choices, i64 num_experts) {
  std::vector<std::vector<double>> out(choices.size());
  for (std::size_t l = 0; l < choices.size(); ++l) {
    if (!choices[l].defined()) continue;
    const std::span<const i32> flat(choices[l].const_data_ptr<i32>(), idx(choices[l].numel()));
    for (const i64 counted : count_copies(flat, num_experts)) out[l].push_back(real(counted));
  }
  return out;
}

TraceRouting routing_of_choices(const std::vector<at::Tensor>& choices, const ModelConfig& model,
                                const std::string& where) {
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  TraceStep step;
  const at::Tensor& first = choices[idx(header.layers[0])];
  step.sequences.assign(idx(first.size(0)), {.tokens = static_cast<std::uint32_t>(first.size(1))});
  index_tokens(step);
  for (const i64 layer : header.layers) {
    const at::Tensor& ids = choices[idx(layer)];
    const std::span<const i32> flat(ids.const_data_ptr<i32>(), idx(ids.numel()));
    std::vector<std::uint16_t>& of_layer = step.choices.emplace_back();
    for (const i32 id : flat) of_layer.push_back(id < 0 ? kNoExpert : static_cast<std::uint16_t>(id));
  }
  count_choices(step, header);
  return {header, std::move(step), model, where};
}

void RouteProbe::run(Session& session, StepInput input, const Processes& processes) {
  const ModelConfig& model = session.model();
  choices_.assign(idx(model.num_layers), {});
  for (const i64 layer : layers_with_experts(model))
    choices_[idx(layer)] = at::full({input.tokens.size(0), input.tokens.size(1), model.top_k}, -1, at::kInt);
  input.routes = this;
  seconds_ = session.evaluate(input).step;
  tell_others(processes);
}

void RouteProbe::take(i32 layer, i64 first, const at::Tensor& topk_TK, const at::Tensor&) {
  const at::Tensor ids = to_host(topk_TK, "choices of a probe").to(at::kInt);
  at::Tensor& all = choices_[idx(layer)];
  const std::lock_guard lock(mutex_);
  all.flatten(0, 1).narrow(0, first, ids.size(0)).copy_(ids);
}

/// Each process has whole sequences of a layer or nothing of them.
void RouteProbe::tell_others(const Processes& processes) {
  if (processes.alone()) return;
  Json mine = Json::array();
  for (std::size_t l = 0; l < choices_.size(); ++l) {
    for (i64 s = 0; choices_[l].defined() && s < choices_[l].size(0); ++s) {
      const at::Tensor ids = choices_[l][s].contiguous();
      const i32* data = ids.const_data_ptr<i32>();
      if (*data >= 0) mine.push_back({l, s, std::vector<i32>(data, data + ids.numel())});
    }
  }
  for (const std::string& text : processes.gather(mine.dump())) {
    for (const Json& entry : Json::parse(text)) {
      const std::vector<i32> ids = entry[2];
      const at::Tensor row = choices_[entry[0].get<std::size_t>()][entry[1].get<i64>()];
      std::copy(ids.begin(), ids.end(), row.mutable_data_ptr<i32>());
    }
  }
}

}  // namespace hetermoe
