#include "hetermoe/kernels/code_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "hetermoe/base/cache_folder.h"
#include "hetermoe/base/checksum.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/host_name.h"

namespace hetermoe::kernels {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// "hetermoe kernel 1 <checksum> <bytes of the identity> <bytes of the code>\n", identity, code.
std::string pack(const std::string& identity, const std::string& code) {
  const u64 sum = checksum(code.data(), code.size(), checksum(identity.data(), identity.size()));
  return fmt::format("hetermoe kernel 1 {:016x} {} {}\n{}{}", sum, identity.size(), code.size(), identity,
                     code);
}

/// The code, if this is a whole file of this identity.
std::optional<std::string> unpack(const std::string& file, const std::string& identity) {
  const std::size_t line = file.find('\n'), begin = line + 1 + identity.size();
  if (line == std::string::npos || file.size() < begin) return std::nullopt;
  std::string code = file.substr(begin);
  if (pack(identity, code) != file) return std::nullopt;
  return code;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

/// Returns why it could not be written, or nothing.
std::string write(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return error.message();
  const fs::path beside = temporary_beside(path);
  {
    std::ofstream out(beside, std::ios::binary);
    out << text;
    out.close();
    if (!out) {
      fs::remove(beside, error);
      return "a file in it cannot be written";
    }
  }
  fs::rename(beside, path, error);
  return error ? error.message() : "";
}

}  // namespace

fs::path code_cache_folder() {
  if (const std::string own = environment("HETERMOE_CACHE_DIR"); !own.empty()) return own;
  return cache_folder("kernels");
}

fs::path temporary_beside(const fs::path& path) {
  static std::atomic<u64> num_names = 0;
  fs::path out = path;
  out += fmt::format(".{}.{}.{}", host_name(), getpid(), num_names++);
  return out;
}

CachedCode cached_code(const fs::path& folder, const std::string& identity,
                       const std::function<std::string()>& compile) {
  CachedCode out;
  const fs::path path = folder / fmt::format("{:016x}", Fnv().add(identity).value());
  std::error_code none;
  if (!folder.empty() && fs::exists(path, none)) {
    if (const std::optional<std::string> code = unpack(read(path), identity)) {
      out.code = *code;
      return out;
    }
    out.warning = fmt::format("{} is damaged: the kernel is compiled anew", path.string());
  }
  out.code = compile();
  out.compiled = true;
  if (folder.empty()) {
    out.warning = "no folder keeps compiled kernels, so every start compiles them: set HETERMOE_CACHE_DIR";
    return out;
  }
  const std::string fault = write(path, pack(identity, out.code));
  if (!fault.empty())
    out.warning = fmt::format(
        "{} cannot keep compiled kernels ({}), so every start compiles them: make it writable or set "
        "HETERMOE_CACHE_DIR",
        folder.string(), fault);
  return out;
}

}  // namespace hetermoe::kernels
