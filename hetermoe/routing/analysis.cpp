#include "hetermoe/routing/analysis.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"

namespace hetermoe {

TraceWindow window_from(const std::string& text, const std::string& where) {
  if (text == "microbatch") return {TraceWindow::kMicrobatch, 0};
  if (text == "step") return {TraceWindow::kStep, 0};
  if (text == "all") return {TraceWindow::kAll, 0};
  const std::optional<i64> number = whole_number(text);
  if (!number || *number < 1)
    fail<ConfigError>(where, "got \"{}\", expected microbatch, step, all or a number of sequences", text);
  return {TraceWindow::kSequences, *number};
}

std::string to_string(const TraceWindow& window) {
  switch (window.kind) {
    case TraceWindow::kMicrobatch:
      return "microbatch";
    case TraceWindow::kStep:
      return "step";
    case TraceWindow::kAll:
      return "all";
    case TraceWindow::kSequences:
      return std::to_string(window.sequences);
  }
  return "";
}

FigureRange TraceFigures::over_layers(FigureRange LayerFigures::*figure) const {
  FigureRange range;
  for (const LayerFigures& layer : layers) {
    if ((layer.*figure).count > 0) range.add((layer.*figure).mean);
  }
  return range;
}

FigureRange TraceFigures::rank_ratio(std::size_t degree) const {
  FigureRange range;
  for (const LayerFigures& layer : layers) {
    if (layer.rank_ratio[degree].count > 0) range.add(layer.rank_ratio[degree].mean);
  }
  return range;
}

double TraceFigures::share_in(RoutingBand band) const {
  const auto in_band = [&](const LayerFigures& layer) { return band_of(layer.gini.mean) == band; };
  return real(std::count_if(layers.begin(), layers.end(), in_band)) / real(layers.size());
}

TraceAnalyser::TraceAnalyser(const TraceHeader& header, TraceWindow window, std::vector<i64> degrees)
    : header_(header) {
  for (const i64 degree : degrees) {
    if (degree < 1 || degree > header.num_experts)
      fail<InputError>("--ep", "got {}, expected 1 to {}, the experts of a layer", degree,
                       header.num_experts);
  }
  figures_.window = window;
  figures_.degrees = std::move(degrees);
  for (const i64 layer : header.layers) {
    LayerFigures figures;
    figures.layer = layer;
    figures.rank_ratio.resize(figures_.degrees.size());
    figures.copies.assign(idx(header.num_experts), 0);
    figures_.layers.push_back(std::move(figures));
  }
  last_microbatch_.resize(header.layers.size());
}

std::vector<double> copies_of(const TraceStep& step, std::size_t layer, i64 num_experts, i64 begin, i64 end) {
  std::vector<double> out(idx(num_experts), 0);
  const std::uint32_t* counts = step.counts[layer].data() + begin * num_experts;
  for (i64 s = begin; s < end; ++s) {
    for (double& copies : out) copies += *counts++;
  }
  return out;
}

std::vector<std::pair<i64, i64>> microbatches_of(const TraceStep& step) {
  std::vector<std::pair<i64, i64>> out;
  for (i64 s = 0; s < step.num_sequences(); ++s) {
    const auto key = [&](i64 i) {
      return std::pair{step.sequences[idx(i)].group, step.sequences[idx(i)].microbatch};
    };
    if (s > 0 && key(s) == key(s - 1))
      out.back().second = s + 1;
    else
      out.emplace_back(s, s + 1);
  }
  return out;
}

void TraceAnalyser::close(std::size_t layer, CopyCounts counts) {
  LayerFigures& out = figures_.layers[layer];
  const std::optional<double> g = gini(counts);
  if (!g) return;
  // Padding is no token here: a token that chooses no expert adds no noise.
  const double tokens = std::accumulate(counts.begin(), counts.end(), 0.0) / real(header_.top_k);
  const double floor = noise_floor(header_.num_experts, header_.top_k, tokens);
  out.gini.add(g);
  out.noise.add(floor);
  out.excess.add(gini_excess(*g, floor));
  out.straggler.add(straggler_ratio(counts));
  for (std::size_t d = 0; d < figures_.degrees.size(); ++d)
    out.rank_ratio[d].add(straggler_ratio(rank_copies(counts, figures_.degrees[d])));
}

void TraceAnalyser::add_window(const TraceStep& step, i64 begin, i64 end) {
  const i64 tokens = step.first_token[idx(end)] - step.first_token[idx(begin)];
  if (tokens == 0) return;
  ++figures_.windows;
  for (std::size_t l = 0; l < figures_.layers.size(); ++l)
    close(l, copies_of(step, l, header_.num_experts, begin, end));
}

void TraceAnalyser::add_drift(const TraceStep& step) {
  for (const auto& [begin, end] : microbatches_of(step)) {
    for (std::size_t l = 0; l < figures_.layers.size(); ++l) {
      std::vector<double> counts = copies_of(step, l, header_.num_experts, begin, end);
      if (!last_microbatch_[l].empty()) figures_.layers[l].drift.add(drift(last_microbatch_[l], counts));
      last_microbatch_[l] = std::move(counts);
    }
  }
}

void TraceAnalyser::add(const TraceStep& step) {
  figures_.steps.push_back(step.step);
  figures_.sequences += step.num_sequences();
  figures_.tokens += step.num_tokens();
  for (std::size_t l = 0; l < figures_.layers.size(); ++l) {
    const std::vector<double> counts = copies_of(step, l, header_.num_experts, 0, step.num_sequences());
    LayerFigures& layer = figures_.layers[l];
    std::transform(counts.begin(), counts.end(), layer.copies.begin(), layer.copies.begin(), std::plus<>());
    layer.gini_of_step.push_back(gini(counts).value_or(0));
  }
  add_drift(step);
  const TraceWindow& window = figures_.window;
  if (window.kind == TraceWindow::kStep) add_window(step, 0, step.num_sequences());
  if (window.kind == TraceWindow::kMicrobatch) {
    for (const auto& [begin, end] : microbatches_of(step)) add_window(step, begin, end);
  }
  if (window.kind == TraceWindow::kSequences) {
    for (i64 s = 0; s + window.sequences <= step.num_sequences(); s += window.sequences)
      add_window(step, s, s + window.sequences);
  }
}

TraceFigures TraceAnalyser::finish(const std::string& where) {
  if (figures_.window.kind == TraceWindow::kAll && figures_.tokens > 0) {
    figures_.windows = 1;
    for (std::size_t l = 0; l < figures_.layers.size(); ++l) close(l, figures_.layers[l].copies);
  }
  if (figures_.windows == 0)
    fail<InputError>(where, "no window of \"{}\" has a token: got {} sequences in {} steps",
                     to_string(figures_.window), figures_.sequences, figures_.steps.size());
  return figures_;
}

namespace {

Json range_json(const FigureRange& range) {
  if (range.count == 0) return nullptr;
  return {{"mean", range.mean}, {"low", range.low}, {"high", range.high}};
}

Json ratios_json(const std::vector<i64>& degrees, const std::function<FigureRange(std::size_t)>& of) {
  Json json = Json::object();
  for (std::size_t d = 0; d < degrees.size(); ++d) json[std::to_string(degrees[d])] = range_json(of(d));
  return json;
}

}  // namespace

Json to_json(const TraceFigures& figures) {
  Json layers = Json::array();
  for (const LayerFigures& layer : figures.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"gini", range_json(layer.gini)},
                      {"noise_floor", range_json(layer.noise)},
                      {"is_noise", layer.is_noise()},
                      {"excess", range_json(layer.excess)},
                      {"max_over_mean", range_json(layer.straggler)},
                      {"rank_max_over_mean",
                       ratios_json(figures.degrees, [&](std::size_t d) { return layer.rank_ratio[d]; })},
                      {"drift", range_json(layer.drift)},
                      {"copies", layer.copies}});
  }
  Json bands = Json::object();
  for (const RoutingBand band : {RoutingBand::kResilient, RoutingBand::kBetween, RoutingBand::kConcentrated})
    bands[name_of(band)] = figures.share_in(band);
  const FigureRange g = figures.over_layers(&LayerFigures::gini);
  return {{"window", to_string(figures.window)},
          {"steps", figures.steps.size()},
          {"sequences", figures.sequences},
          {"tokens", figures.tokens},
          {"windows", figures.windows},
          {"gini", range_json(g)},
          {"noise_floor", range_json(figures.over_layers(&LayerFigures::noise))},
          {"excess", range_json(figures.over_layers(&LayerFigures::excess))},
          {"max_over_mean", range_json(figures.over_layers(&LayerFigures::straggler))},
          {"rank_max_over_mean",
           ratios_json(figures.degrees, [&](std::size_t d) { return figures.rank_ratio(d); })},
          {"drift", range_json(figures.over_layers(&LayerFigures::drift))},
          {"band", name_of(band_of(g.mean))},
          {"bands", bands},
          {"layers", layers}};
}

std::string copies_csv(const TraceFigures& figures) {
  std::string text = "layer,expert,copies,share\n";
  for (const LayerFigures& layer : figures.layers) {
    const double sum = std::accumulate(layer.copies.begin(), layer.copies.end(), 0.0);
    for (std::size_t e = 0; e < layer.copies.size(); ++e)
      text += fmt::format("{},{},{},{:.6f}\n", layer.layer, e, layer.copies[e],
                          sum > 0 ? layer.copies[e] / sum : 0);
  }
  return text;
}

}  // namespace hetermoe
