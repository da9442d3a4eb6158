#include "hetermoe/report/table.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <sstream>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

TEST(Format, SecondsKeepThreeDigitsInTheFittingUnit) {
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(1.0549), "1.05 s");
  EXPECT_EQ(format_seconds(0.0009999), "1.00 ms");
  EXPECT_EQ(format_seconds(0.00034), "340 us");
  EXPECT_EQ(format_seconds(5e-9), "5.00 ns");
  EXPECT_EQ(format_seconds(-0.002), "-2.00 ms");
  EXPECT_EQ(format_seconds(599), "599 s");
  EXPECT_EQ(format_seconds(725), "12 min 5 s");
  EXPECT_EQ(format_seconds(36000), "10 h 0 min");
  EXPECT_EQ(format_seconds(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Format, BytesAreBinary) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(-0.3), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(34.1 * 1024 * 1024 * 1024), "34.1 GiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 * 1024 * 1024 * 2), "2.00 TiB");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1.00 MiB");
}

TEST(Format, CountsHaveOneDecimal) {
  EXPECT_EQ(format_count(512), "512");
  EXPECT_EQ(format_count(0.25), "0.250");
  EXPECT_EQ(format_count(65536), "65.5 K");
  EXPECT_EQ(format_count(999950), "1.0 M");
  EXPECT_EQ(format_count(1.24e9), "1.2 B");
  EXPECT_EQ(format_count(46702792704), "46.7 B");
  EXPECT_EQ(format_count(6.71e11), "671.0 B");
  EXPECT_EQ(format_count(999.9), "1.0 K");
}

TEST(Format, DigitsNeverShowAnAvoidableExponent) {
  EXPECT_EQ(format_digits(1234.5, 3), "1234");
  EXPECT_EQ(format_digits(9.996, 3), "10.0");
  EXPECT_EQ(format_digits(0.00123, 3), "0.00123");
  EXPECT_EQ(format_digits(1.5e-7, 2), "1.5e-07");
  EXPECT_EQ(format_percent(0.1234), "12.3 %");
  EXPECT_EQ(format_factor(1.234), "1.23x");
}

TEST(Table, NumbersAreRightAlignedAndTextLeft) {
  Table table({"strategy", "step", "tokens/s", "note"});
  table.add_row({"zebra", "12.3 ms", "1.2 M", "best"});
  table.add_row({"dist-ep", "120 ms", "-", ""});
  EXPECT_EQ(table.str(),
            "strategy     step  tokens/s  note\n"
            "--------  -------  --------  ----\n"
            "zebra     12.3 ms     1.2 M  best\n"
            "dist-ep    120 ms         -\n");
}

TEST(Table, WidthsCountCharactersNotBytes) {
  Table table({"name", "x"});
  table.add_row(
      {"gr\xC3\xB6\xC3\x9F"
       "er",
       "1"});
  table.add_row({"ab", "22"});
  EXPECT_EQ(table.str(2),
            "  name     x\n"
            "  ------  --\n"
            "  gr\xC3\xB6\xC3\x9F"
            "er   1\n"
            "  ab      22\n");
}

TEST(Table, OneWordAmongNumbersMakesAColumnText) {
  Table table({"a"});
  table.add_row({"1"});
  table.add_row({"does not fit"});
  EXPECT_EQ(table.str(), "a\n------------\n1\ndoes not fit\n");
  table.align(0, Align::kRight);
  EXPECT_EQ(table.str(), "           a\n------------\n           1\ndoes not fit\n");
}

TEST(Table, ShortRowsAreFilledAndLongOnesRefused) {
  Table table({"a", "b"});
  table.add_row({"1"});
  EXPECT_EQ(table.str(), "a  b\n-  -\n1\n");
  EXPECT_THROW(table.add_row({"1", "2", "3"}), InternalError);
}

/// Whatever the cells: no line is wider than 120 characters, no word is lost, and every part begins with the
/// first columns.
TEST(Table, NoLineIsWiderThan120Characters) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::size_t columns = 1 + random() % 16, keys = 1 + random() % std::min<std::size_t>(3, columns);
    std::vector<std::string> words, header;
    const auto cell = [&](std::size_t most) {
      std::string text;
      for (std::size_t w = 0; w < most; ++w) {
        words.push_back("w" + std::to_string(words.size()));
        text += (w == 0 ? "" : " ") + words.back();
      }
      return text;
    };
    for (std::size_t c = 0; c < columns; ++c) header.push_back(cell(1 + random() % 3));
    Table table(header);
    table.keys(keys);
    for (std::size_t r = 0; r < 1 + random() % 5; ++r) {
      std::vector<std::string> row;
      for (std::size_t c = 0; c < columns; ++c)
        row.push_back(cell(1 + random() % (c < keys ? 2 : random() % 5 == 0 ? 60 : 4)));
      table.add_row(row);
    }
    const std::string text = table.str();
    std::istringstream lines(text), all(text);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(display_width(line), 120u) << "seed " << seed << "\n" << text;
    std::set<std::string> found;
    for (std::string word; all >> word;) found.insert(word);
    for (const std::string& word : words)
      EXPECT_TRUE(found.contains(word)) << word << " seed " << seed << "\n" << text;
  }
}

TEST(Table, LongNamesInTheFirstColumnAreWrappedBesideTheFigures) {
  Table table({"plan", "step", "tokens/s", "why"});
  std::string name = "zebra";
  for (int i = 0; i < 20; ++i) name += " on 4 A40";
  table.add_row({name, "8.92 s", "7.4 K", "best"});
  table.add_row({"ep", "9.92 s", "6.4 K", "slower than the best by more than was thought at first"});
  const std::string text = table.str();
  EXPECT_EQ(text.find("\n\n"), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), Table::kMostColumns) << line;
}

TEST(Table, WideTablesGoOnBelow) {
  std::vector<std::string> header = {"strategy"}, row = {"zebra"};
  for (int c = 0; c < 12; ++c) header.push_back("column number " + std::to_string(c)), row.push_back("1");
  Table table(header);
  table.add_row(row);
  const std::string text = table.str();
  EXPECT_EQ(text.substr(0, 27), "strategy  column number 0  ");
  EXPECT_NE(text.find("\n\nstrategy  column number"), std::string::npos) << text;
}

TEST(Table, NumericCellsAreRecognised) {
  for (const char* text :
       {"12.3", "-4", "1.2e-05", "12.3 ms", "45 %", "45%", "1.8x", "~3 GiB", "1,024", "12 min 5 s", "inf"}) {
    EXPECT_TRUE(looks_numeric(text)) << text;
  }
  for (const char* text : {"", "A40", "1080Ti", "2x A40", "12 of 16", "3 GiB free", "none"})
    EXPECT_FALSE(looks_numeric(text)) << text;
}

}  // namespace
}  // namespace hetermoe
