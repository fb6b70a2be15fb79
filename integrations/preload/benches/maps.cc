// Works with maps and strings, whose requests are all small: maps fill|copy|find. Each takes about a second and 80 MB under glibc.
//   g++ -O2 integrations/preload/benches/maps.cc -o maps && LD_PRELOAD=$PWD/target/release/libzk_alloc.so ./maps copy
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <vector>

using Map = std::map<std::string, std::string>;

static uint64_t state = 88172645463325252;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static std::string key(uint64_t number) { return "the key with the number " + std::to_string(number); }

static std::string value() { return std::string(20 + draw(60), 'x'); }

/// Fills a map, copies it and erases half of it, three times.
static size_t fill() {
    size_t sum = 0;
    for (int round = 0; round < 3; round++) {
        Map map;
        for (uint64_t i = 0; i < 200000; i++) map[key(i * 7919 % 200000)] = value();
        Map copy = map;
        for (uint64_t i = 0; i < 200000; i += 2) map.erase(key(i));
        sum += map.size() + copy.size();
    }
    return sum;
}

/// Keeps forty maps. Each round replaces one map with a copy of another, and changes a quarter of its entries.
static size_t copy() {
    size_t sum = 0;
    std::vector<Map> maps(40);
    for (Map &map : maps)
        for (int i = 0; i < 9000; i++) map[key(draw(1000000))] = value();
    for (int round = 0; round < 110; round++) {
        Map &map = maps[draw(40)];
        map = maps[draw(40)];
        for (auto entry = map.begin(); entry != map.end();) entry = draw(4) ? std::next(entry) : map.erase(entry);
        for (int i = 0; i < 2250; i++) map[key(draw(1000000))] = value();
        sum += map.size();
    }
    return sum;
}

/// Adds and erases random entries of one map. Searches take most of the time.
static size_t find() {
    Map map;
    for (int i = 0; i < 600000; i++) {
        std::string at = key(draw(400000));
        if (draw(3)) map[at] = value();
        else map.erase(at);
    }
    return map.size();
}

int main(int count, char **words) {
    std::string pattern = count > 1 ? words[1] : "fill";
    std::printf("%zu\n", pattern == "copy" ? copy() : pattern == "find" ? find() : fill());
}
