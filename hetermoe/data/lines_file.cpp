#include "hetermoe/data/lines_file.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

/// One inflation of a gzip file, ended whatever happens.
class Inflater {
 public:
  Inflater() {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    HM_CHECK(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib has no memory");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;

  /// Adds to `out` what the next member of `packed` holds, which is taken off it. false = it is damaged or
  /// cut.
  bool take_member(std::string_view& packed, std::string& out) {
    if (inflateReset(&stream_) != Z_OK) return false;
    int state = Z_OK;
    while (state == Z_OK) {
      const std::size_t given = std::min<std::size_t>(packed.size(), std::numeric_limits<uInt>::max());
      // zlib's interface takes no const; it reads only.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
      stream_.avail_in = static_cast<uInt>(given);
      stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      stream_.avail_out = static_cast<uInt>(chunk_.size());
      state = inflate(&stream_, Z_NO_FLUSH);
      packed.remove_prefix(given - stream_.avail_in);
      out.append(chunk_.data(), chunk_.size() - stream_.avail_out);
    }
    return state == Z_STREAM_END;
  }

 private:
  z_stream stream_{};
  std::vector<char> chunk_ = std::vector<char>(1 << 20);
};

std::string unpacked(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string_view packed = file.bytes();
  std::string out;
  Inflater inflater;
  while (!packed.empty()) {
    if (!inflater.take_member(packed, out))
      fail<InputError>(path.string(),
                       "is no whole gzip file: it is damaged or cut after {} bytes of text. Make it anew, or "
                       "`gzip -t` it",
                       out.size());
  }
  return out;
}

}  // namespace

bool is_gzip(const std::filesystem::path& path) { return path.extension() == ".gz"; }

LinesFile::LinesFile(const std::filesystem::path& path) {
  if (is_gzip(path))
    unpacked_ = unpacked(path);
  else
    mapped_.emplace(path);
}

}  // namespace hetermoe
