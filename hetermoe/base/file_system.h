#pragma once
#include <filesystem>
#include <optional>

#include "hetermoe/base/types.h"

// Functions that std::filesystem lacks.
namespace hetermoe {

/// Two paths of one file system get each other's name at once: at no moment is one of the names free. False,
/// with nothing changed, where the system or the file system cannot do that.
bool swap_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// `fresh` gets the name `target`, which another may have. Returns where that one lies then: at `fresh` where
/// names can be swapped, else at `aside`, whose content is lost. Throws filesystem_error; names are then as
/// before.
std::filesystem::path take_name(const std::filesystem::path& fresh, const std::filesystem::path& target,
                                const std::filesystem::path& aside);

/// Bytes that this user may still write into a folder, which need not exist. None: the file system does not
/// say.
std::optional<Bytes> free_space(const std::filesystem::path& folder);

/// Bytes of the files of a folder and of all folders in it, 0 when there is none.
Bytes folder_bytes(const std::filesystem::path& folder);

}  // namespace hetermoe
