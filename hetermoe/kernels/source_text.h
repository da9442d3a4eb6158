#pragma once
#include <span>

// Apart from table.h, so that the file made of the kernels' texts (cmake/embed.cmake) needs no header of
// torch.
namespace hetermoe::kernels {

/// A file of this folder, under the name by which others include it.
struct SourceText {
  const char* name;
  const char* text;
};
std::span<const SourceText> source_texts();

}  // namespace hetermoe::kernels
