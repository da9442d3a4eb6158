#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// Seconds between and beyond measured sizes.
namespace hetermoe {

struct CurveValue {
  Seconds seconds = 0;
  bool extrapolated = false;  ///< the size lies outside of what was measured
};

/// Seconds over one size (tokens, rows, bytes ...). Between two measured sizes a straight line in logarithms:
/// exact at both, monotone, and exact for any power law. Beyond the ends a straight line through the two
/// nearest points, never falling towards larger sizes and never below what fixed cost per unit would give.
class Curve {
 public:
  /// Sizes and seconds are above 0; sizes must differ. One point alone means seconds proportional to size.
  void add(double size, Seconds seconds);
  bool empty() const { return points_.empty(); }
  /// size > 0.
  CurveValue at(double size) const;
  double smallest() const { return points_.front().size; }
  double largest() const { return points_.back().size; }

 private:
  struct Point {
    double size;
    Seconds seconds;
  };
  std::vector<Point> points_;  // ascending sizes
};

/// Seconds over two sizes: a family of curves, one for each measured value of the second size (sequence
/// length, number of experts). Between two curves it is a straight line in logarithms. Beyond the ends the
/// power law of the two nearest curves continues, with an exponent of at least 1 and at most 2 (1 where there
/// is only one curve).
class Surface {
 public:
  void add(double family, double size, Seconds seconds) { curve(family).add(size, seconds); }
  bool empty() const { return families_.empty(); }
  CurveValue at(double family, double size) const;

 private:
  struct Family {
    double value;
    Curve curve;
  };
  Curve& curve(double family);
  std::vector<Family> families_;  // ascending values
};

}  // namespace hetermoe
