#pragma once
#include "hetermoe/comm/transport.h"
#include "hetermoe/plan/wire.h"

// Rows as they travel, and back. Suffixes: R rows, D numbers of a row, B bytes of a row, G groups of rows, N
// rows of a group.
namespace hetermoe {

at::ScalarType scalar_type(Dtype dtype);
/// In what numbers travel without scales; HM_CHECK fails for a wire with scales.
at::ScalarType scalar_type(Wire wire);

/// The result of encode() for `rows` rows of `width` numbers: numbers [R, D]; with a scale for each row bytes
/// [R, B], the codes of a row and then its scale; in groups bytes [R + 4 G, D], all codes and then four rows
/// of scales for each group.
MessageShape::Part encoded_part(Wire wire, i64 rows, i64 width);
/// How many rows a result of encode() has.
i64 num_rows(const at::Tensor& encoded, Wire wire);

/// fp8_row: the scale of a row is its largest absolute value / 448, at least 2^-126; that of zeros is 1. A
/// row with a number that is not finite in fp32 gets the scale NaN: all of it is NaN when it is decoded.
/// fp8_group: so are the scales of a column of each kRowsOfGroup rows; the last group may have fewer.
/// Other wires: rounds to nearest, halves to even; what is too large for fp16 becomes infinite.
at::Tensor encode(const at::Tensor& x_RD, Wire wire);

/// As encode(), after `lost`, what earlier calls lost, is added to `exact` in place. Then `lost` is what this
/// call loses; zero where a number is not finite.
at::Tensor encode_with_feedback(at::Tensor exact, at::Tensor lost, Wire wire);

/// With scales: the numbers [R, D] in `dtype`. Other rows are returned as they came.
at::Tensor decode(const at::Tensor& received, Wire wire, at::ScalarType dtype);

/// fp64 [2]: sums of the squares of what `decoded` lacks of `exact`, and of the numbers of `exact`. The root
/// of their quotient is the relative rms error of the wire.
at::Tensor wire_loss(const at::Tensor& exact, const at::Tensor& decoded);

}  // namespace hetermoe
