#include "hetermoe/report/metrics_file.h"

#include <algorithm>
#include <fstream>

#include "hetermoe/base/median.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMostPoints = 2000, kMostMarks = 100, kMostWarnings = 8, kRecent = 20;

void add_notes(std::vector<StepNote>& notes, const Json& line, const char* key, std::size_t most) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array()) return;
  for (const Json& text : *found) {
    if (text.is_string()) notes.push_back({number_in(line, "step"), text.get<std::string>()});
  }
  if (notes.size() > most) notes.erase(notes.begin(), notes.end() - static_cast<std::ptrdiff_t>(most));
}

}  // namespace

void ThinnedLines::add(Json line) {
  if (count_++ % every_ == 0) lines_.push_back(std::move(line));
  if (lines_.size() < 2 * kMostPoints) return;
  for (std::size_t i = 0; 2 * i < lines_.size(); ++i) lines_[i] = std::move(lines_[2 * i]);
  lines_.resize((lines_.size() + 1) / 2);
  every_ *= 2;
}

double number_in(const Json& line, const std::string& key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0;
}

double MetricsFile::recent(const char* key) const {
  const std::vector<Json>& all = lines();
  std::vector<double> values;
  for (std::size_t i = all.size() - std::min(all.size(), kRecent); i < all.size(); ++i)
    values.push_back(number_in(all[i], key));
  return values.empty() ? 0 : median(values);
}

void MetricsFile::update() {
  std::error_code code;
  const std::uintmax_t size = std::filesystem::file_size(path_, code);
  if (code) return;
  if (size < read_) *this = MetricsFile(path_);  // another run began it anew
  std::ifstream in(path_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(read_));
  std::string added(static_cast<std::size_t>(size - read_), '\0');
  in.read(added.data(), static_cast<std::streamsize>(added.size()));
  added.resize(static_cast<std::size_t>(in.gcount()));
  read_ += added.size();
  rest_ += added;
  std::size_t begin = 0;
  for (std::size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto at = [&](std::size_t position) {
      return rest_.begin() + static_cast<std::ptrdiff_t>(position);
    };
    Json line = Json::parse(at(begin), at(end), nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) add(std::move(line));
  }
  rest_.erase(0, begin);
}

void MetricsFile::add(Json line) {
  add_notes(marks_, line, "marks", kMostMarks);
  add_notes(warnings_, line, "warnings", kMostWarnings);
  if (line.contains("validation_loss")) validations_.add(line);
  last_ = line;
  lines_.add(std::move(line));
}

}  // namespace hetermoe
