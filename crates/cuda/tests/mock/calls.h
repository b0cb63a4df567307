// Calls of a mock by their number, from 1 on. Number `fail_at` answers `fail_code`.

#include <map>
#include <string>
#include <vector>

struct counted {
    std::map<std::string, long> numbers;
    std::vector<const char*> calls;
    const char* failed = "";

    // 0, or the code that the call is to answer.
    int enter(const char* call) {
        calls.push_back(call);
        if ((long)calls.size() != numbers["fail_at"]) return 0;
        failed = call;
        return (int)numbers["fail_code"];
    }

    // A setting, or the number of calls.
    long number(const std::string& name) { return name == "calls" ? (long)calls.size() : numbers[name]; }

    const char* name_of(long number) { return number >= 1 && number <= (long)calls.size() ? calls[number - 1] : ""; }
};
