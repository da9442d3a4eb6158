#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/cluster/cluster.h"

// How rows are written in a transfer.
namespace hetermoe {

/// fp8_row: a row's numbers in E4M3 (4 bits of exponent, 3 of mantissa, largest 448, no infinity), divided by
/// a scale of the row, which travels behind them in fp32. fp8_group: a scale for each column of
/// kRowsOfGroup rows of a message. Only rows of experts and their gradients travel so.
enum class Wire { kFp64, kFp32, kBf16, kFp16, kFp8Row, kFp8Group };
inline constexpr i64 kRowsOfGroup = 128;
template <>
struct EnumNames<Wire> {
  static const std::vector<std::string>& names();
};

Wire wire_of(Dtype dtype);
/// None = numbers travel with scales.
std::optional<Dtype> dtype_of(Wire wire);
inline bool has_scales(Wire wire) { return !dtype_of(wire); }
/// Rows share scales, so that a part of a message is none.
inline bool has_groups(Wire wire) { return wire == Wire::kFp8Group; }
/// In what other things travel than rows of experts: the same, and bf16 in place of a wire with scales.
Wire without_scales(Wire wire);
/// Bytes of a row of `width` numbers; in groups that of a whole one.
Bytes row_bytes(Wire wire, double width);
/// Bytes of a message of rows; a part of a group has the scales of a whole one.
Bytes rows_bytes(Wire wire, double rows, double width);

}  // namespace hetermoe
