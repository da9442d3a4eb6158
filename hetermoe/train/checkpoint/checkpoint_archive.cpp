#include "hetermoe/train/checkpoint/checkpoint_archive.h"

#include <fmt/ranges.h>

#include <charconv>

#include "hetermoe/base/error.h"

namespace hetermoe {

std::string lost_name(const std::string& tensor, PlaceId place) {
  return fmt::format("{}.lost.{}", tensor, place);
}

std::string piece_name(const std::string& tensor, std::optional<i64> first) {
  return first ? fmt::format("{}@{}", tensor, *first) : tensor + "@";
}

Archive::Archive(const std::filesystem::path& folder, const Json& files) : folder_(folder) {
  for (const auto& [name, size] : files.items()) {
    readers_.push_back(std::make_unique<SafetensorsReader>(folder / name, Checksums::kOfAll));
    for (const std::string& tensor : readers_.back()->names()) where_[tensor] = readers_.back().get();
  }
}

bool Archive::has(const std::string& name) const {
  return where_.count(name) > 0 || !pieces_of(name).empty();
}

at::ScalarType Archive::dtype(const std::string& name) const {
  const std::map<i64, std::string> pieces = pieces_of(name);
  const auto found = where_.find(pieces.empty() ? name : pieces.begin()->second);
  if (found == where_.end()) fail<IoError>(folder_.string(), "has no tensor {}", name);
  return found->second->dtype(found->first);
}

at::Tensor Archive::read(const std::string& name, at::IntArrayRef sizes) const {
  const auto found = where_.find(name);
  if (found == where_.end()) return join_pieces(name, sizes);
  const at::Tensor tensor = found->second->read(name);
  if (tensor.sizes() != sizes) {
    fail<IoError>(folder_.string(), "{}: got shape [{}], expected [{}]", name,
                  fmt::join(tensor.sizes(), ", "), fmt::join(sizes, ", "));
  }
  return tensor;
}

/// Their names by where they begin.
std::map<i64, std::string> Archive::pieces_of(const std::string& name) const {
  std::map<i64, std::string> pieces;
  const std::string prefix = piece_name(name, {});
  for (auto at = where_.lower_bound(prefix); at != where_.end() && at->first.starts_with(prefix); ++at) {
    const std::string begin = at->first.substr(prefix.size());
    i64 first = 0;
    const auto [end, error] = std::from_chars(begin.data(), begin.data() + begin.size(), first);
    if (error == std::errc() && end == begin.data() + begin.size()) pieces[first] = at->first;
  }
  return pieces;
}

at::Tensor Archive::join_pieces(const std::string& name, at::IntArrayRef sizes) const {
  std::vector<at::Tensor> pieces;
  i64 next = 0;
  for (const auto& [first, piece] : pieces_of(name)) {
    if (first != next) break;
    pieces.push_back(where_.at(piece)->read(piece).reshape(-1));
    next += pieces.back().numel();
  }
  if (pieces.empty()) fail<IoError>(folder_.string(), "has no tensor {}", name);
  const i64 count = c10::multiply_integers(sizes);
  if (next != count)
    fail<IoError>(folder_.string(), "{}: its pieces hold elements 0 to {}, expected {}", name, next, count);
  return at::cat(pieces).view(sizes);
}

}  // namespace hetermoe
