#pragma once
#include <filesystem>
#include <functional>
#include <string>

// Compiled kernels in a folder, so that a process compiles only what no earlier one did.
namespace hetermoe::kernels {

/// HETERMOE_CACHE_DIR, else hetermoe/kernels in XDG_CACHE_HOME or in ~/.cache; empty where none of the three
/// is known.
std::filesystem::path code_cache_folder();

/// A name beside `path` for what shall be renamed to it: no other call in this process takes it, no other
/// process, and no other host that shares the folder.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// Result of a look into the cache.
struct CachedCode {
  std::string code;
  bool compiled = false;  ///< it was not there
  std::string warning;    ///< a sentence about a damaged file or a folder that cannot be written; else empty
};

/// The code under this identity, or that of compile(), which is then kept: written beside and renamed, so
/// that several processes may do the same. A file that is damaged, or of another identity with the same hash,
/// is compiled anew and replaced. Throws what compile() throws, and nothing about files.
CachedCode cached_code(const std::filesystem::path& folder, const std::string& identity,
                       const std::function<std::string()>& compile);

}  // namespace hetermoe::kernels
