// A test program in a header: TEST blocks, expectations that count, a filter on the command line.
#pragma once

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace pteron::testing {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int failures = 0;

inline void expect(bool ok, const char* text, const char* file, int line, const std::string& more) {
  if (ok) return;
  ++failures;
  std::printf("  %s:%d: %s %s\n", file, line, text, more.c_str());
}

// The text of what `body` throws; "" if it throws nothing.
template <typename Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline int run_cases(int argc, char** argv, int first) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int ran = 0;
  for (const Case& test : cases()) {
    bool wanted = argc <= first;
    for (int i = first; i < argc; ++i)
      wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    const int before = failures;
    const std::string error = thrown(test.body);
    expect(error.empty(), "threw:", test.name, 0, error);
    std::printf("%s %s\n", failures == before ? "ok  " : "FAIL", test.name);
    ++ran;
  }
  std::printf("%d tests, %d failed expectations\n", ran, failures);
  return failures == 0 && ran > 0 ? 0 : 1;
}

}  // namespace pteron::testing

#define EXPECT(condition) ::pteron::testing::expect((condition), #condition, __FILE__, __LINE__, "")
#define EXPECT_TEXT(text, part)                                                                  \
  do {                                                                                           \
    const std::string pteron_text = (text);                                                      \
    ::pteron::testing::expect(::pteron::testing::contains(pteron_text, part), "expected " #part, \
                              __FILE__, __LINE__, "in '" + pteron_text + "'");                   \
  } while (false)
#define TEST(name)                                                  \
  static void name();                                               \
  [[maybe_unused]] static const bool registered_##name =            \
      (::pteron::testing::cases().push_back({#name, &name}), true); \
  static void name()
