#!/usr/bin/env bash
# Programs of other projects, which programs.rs runs in an empty folder: programs.sh NAME Each must print the same under every allocator.
# SOURCES is the folder of this package, and USER_HOME is the user's home directory.
set -euo pipefail
# Stops background servers when the script exits.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

case $1 in
python)
python3 -c '
import hashlib, json, re, subprocess, sys, threading, zlib
data = json.dumps([{"n": n, "text": str(n) * 20, "square": [n * n] * 5} for n in range(40000)])
print(len(data), hashlib.sha256(data.encode()).hexdigest(), zlib.crc32(zlib.compress(data.encode(), 9)))
print(sum(entry["n"] for entry in json.loads(data)), len(re.findall("9+8", data)))
blocks = [bytearray(n * 1000) for n in range(1, 500)]
for block in blocks[::2]: block.extend(b"x" * 70000)
print(sum(map(len, blocks)))
results = []
def work(n): results.append((n, sum(len(bytes(m * 977)) for m in range(400))))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(sorted(results))
print(2 ** 20011 % (10 ** 50 + 9), subprocess.run(["echo", "child"], capture_output=True).stdout)
'
;;

# A pool forks its children while the arena has a lot of live memory.
python_with_forked_workers)
python3 -c '
import multiprocessing, hashlib
kept = [bytes([n % 256]) * 300000 for n in range(200)]
def work(n):
    mine = [bytes([m % 256]) * (n * 5000) for m in range(100)]
    return hashlib.sha256(b"".join(mine + kept[:n])).hexdigest()
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(pool.map(work, range(20)))
'
;;

perl)
perl -e '
my %words; my $text = "";
for my $n (1 .. 200000) { my $word = ($n * 7919) % 10007; $words{$word}++; $text .= "$word " }
print length $text, "\n";
print join(",", map { "$_=$words{$_}" } (sort { $words{$b} <=> $words{$a} || $a <=> $b } keys %words)[0 .. 20]), "\n";
my $count = () = $text =~ /\b1\d*7\b/g; print "$count\n";
my @rows = map { [ map { $_ * 3 } 1 .. 50 ] } 1 .. 5000; my $sum = 0; $sum += $_->[49] for @rows; print "$sum\n";
$text =~ s/1/one/g; print length $text, " ", unpack("%32C*", $text), "\n";
'
;;

sqlite3)
sqlite3 file.db "
PRAGMA journal_mode = WAL;
CREATE TABLE numbers (id INTEGER PRIMARY KEY, bucket INTEGER, text TEXT, blob BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
INSERT INTO numbers SELECT i, i * 7919 % 101, printf('row %08d', i * 31 % 60000), zeroblob(i % 300) FROM n;
CREATE INDEX by_text ON numbers (text);
SELECT bucket, count(*), sum(length(blob)), max(text) FROM numbers GROUP BY bucket ORDER BY 2 DESC, 1 LIMIT 10;
SELECT count(*) FROM numbers a JOIN numbers b ON a.text = b.text;
UPDATE numbers SET blob = zeroblob(100000) WHERE id % 1000 = 0;
DELETE FROM numbers WHERE bucket % 3 = 0;
VACUUM;
PRAGMA integrity_check;
SELECT group_concat(text) FROM (SELECT text FROM numbers ORDER BY text LIMIT 500);"
sha256sum file.db
;;

git)
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main . && git config pack.threads 4 && git config gc.auto 0
for n in $(seq 1 8); do
    for m in $(seq 1 20); do seq $n $((m * 300)) > file$m; done
    git add -A && git commit -q -m "commit $n"
done
git repack -q -a -d -f --depth=50 --window=50 && git fsck --full --strict
git log --format='%H %s' --stat | sha256sum
git rev-list --all --objects | git cat-file --batch-check='%(objectname) %(objecttype) %(objectsize)' | cut -d' ' -f1-3 | sort | sha256sum
git blame file7 | sha256sum && git diff HEAD~3 HEAD | sha256sum && git grep -c 299 | sort | sed -n 1,3p
git clone -q . ../clone && git -C ../clone rev-parse HEAD
;;

gcc_and_its_linker)
gcc -O2 -S -pthread "$SOURCES/tests/c/functions.c" -o - | sha256sum
gcc -O2 -fno-builtin -pthread "$SOURCES/tests/c/functions.c" -o program && sha256sum program
gcc -O2 -flto -fno-builtin -pthread -frandom-seed=1 "$SOURCES/tests/c/threads.c" -o lto && sha256sum < lto
;;

gpp)
g++ -std=c++17 -O2 -S "$SOURCES/tests/c/operators.cc" -o - | sha256sum
g++ -std=c++17 -O2 -pthread "$SOURCES/tests/c/tls.cc" -o program -ldl && sha256sum program
printf '#include <regex>\n#include <iostream>\nint main() { std::cout << std::regex_replace(std::string(20000, 39), std::regex("x+"), "y").size(); }' > r.cc
g++ -std=c++17 -O1 -g r.cc -o r && ./r
;;

sort_and_its_threads)
seq 1 400000 | sort --parallel=4 -S 64M -k1.2 -r | sha256sum; seq 1 300000 | sort -S 2M -n -r | sed -n 1,3p
seq 1 100000 | shuf --random-source=<(yes) | sort -R --random-source=<(yes) | sha256sum
;;

compressors_and_tar)
seq 1 100000 > text && tar --sort=name --mtime=@0 --owner=0 --group=0 -cf archive.tar text -C "$SOURCES" tests src && sha256sum < archive.tar
xz -1 -T2 -c archive.tar > archive.xz && sha256sum < archive.xz && xz -dc archive.xz | sha256sum
gzip -6 -n -c archive.tar | sha256sum && gzip -c archive.tar | gunzip | sha256sum
if command -v bzip2 >/dev/null; then bzip2 -9 -c archive.tar | sha256sum; fi
if command -v zstd >/dev/null; then zstd -q -3 -T2 -c archive.tar | sha256sum; fi
;;

awk_and_sed)
seq 1 200000 | awk '{ a[$1 % 1009] = a[$1 % 1009] $1; n[$1 % 10007]++ } END { for (k = 0; k < 1009; k++) s += length(a[k]); print s, length(n) }'
seq 1 100000 | sed -e ':x;N;$!bx;s/\n1/ one/g' | sha256sum
seq 1 50000 | grep -E '(1|2)(3|4).*7$' | sha256sum
;;

bash_itself)
declare -A table; text=""
for ((n = 0; n < 20000; n++)); do table[key$((n * 7919 % 10007))]+=x; text+=$n; done
echo ${#table[@]} ${#text}; printf '%s\n' "${!table[@]}" | sort | sed -n 1,3p
for n in 1 2 3; do (echo $((n * n)); exec true) & wait; done; echo "${text:5000:40}" "$(for n in 1 2 3; do echo $n; done)"
;;

make_with_jobs)
{ printf 'all: $(addprefix out, $(shell seq 1 30))\n\tcat out* | sha256sum\nout%%:\n\t@seq 1 $*00 | sort -r > $@\n'; } > Makefile
make -s -j4
;;

# openssl encrypts and hashes. Its library has hooks for custom memory functions.
openssl)
seq 1 200000 > text
openssl dgst -sha512 text && openssl enc -aes-256-ctr -pbkdf2 -iter 1000 -S 0102030405060708 -k word -in text | openssl dgst -sha256
openssl prime 1000003 && openssl ciphers -v ALL | sort | openssl dgst -sha256
;;

# rustc contains its own allocator and loads libraries that don't. It finds its toolchain through the user's home folder.
rustc)
export HOME=$USER_HOME
printf 'fn main() { let v: Vec<u64> = (0..1000).map(|n| n * n).collect(); println!("{:?}", v.iter().sum::<u64>()); }' > p.rs
rustc --edition 2024 -O -C codegen-units=4 --emit=asm -o - p.rs | sha256sum && rustc --edition 2024 -O p.rs -o p && ./p
;;

# redis calls `malloc_usable_size` for each allocation, and forks to save its data. redis-benchmark sends the requests.
redis_server_and_its_benchmark)
redis-server --port 0 --unixsocket "$PWD/socket" --save "" --io-threads 2 --enable-debug-command yes > log 2>&1 &
until redis-cli -s socket ping 2>&1 | grep -q PONG; do kill -0 $!; sleep 0.05; done
seq 1 20000 | awk '{ print "SET key" $1, "value" $1 * 31; print "ZADD sorted", $1 * 7919 % 10007, "member" $1; print "RPUSH list" $1 % 50, $1 }' |
    redis-cli -s socket --pipe
seq 1 50 | awk '{ s = s "0123456789abcdef" } { for (i = 0; i < 9; i++) s = s s; print "SET large" $1, substr(s, 1, $1 * 3000); s = "" }' | redis-cli -s socket --pipe
redis-cli -s socket eval 'local n = 0 for i = 1, 20000 do n = n + #redis.call("GET", "key" .. i) end return n' 0
redis-cli -s socket sort list7 desc limit 0 5 && redis-cli -s socket debug digest
redis-cli -s socket bgrewriteaof > rewritten && redis-cli -s socket debug reload && redis-cli -s socket debug digest
redis-cli -s socket memory purge && redis-cli -s socket memory malloc-stats | grep -c 'jemalloc statistics'
redis-benchmark -s socket -q -n 1000 -c 20 -P 8 -d 300 -r 1000 -t set,get,lpush,lpop,sadd,hset,spop,zadd,lrange_100,mset |
    tr '\r' '\n' | grep -c 'requests per second'
redis-cli -s socket shutdown nosave; wait $! && grep -c 'bye bye' log
;;

# varnish's test program runs a cache in front of a server. gcc compiles the cache's configuration.
varnishd)
cat > cache.vtc <<'end'
varnishtest "a cache in front of a server"
server s1 -repeat 30 -keepalive {
    rxreq
    txresp -hdr "Cache-Control: max-age=60" -bodylen 7000
} -start
varnish v1 -arg "-s default,8m" -vcl+backend {
    sub vcl_backend_response { set beresp.do_gzip = true; }
} -start
client c1 -repeat 40 {
    txreq -url "/one"
    rxresp
    expect resp.status == 200
    expect resp.bodylen == 7000
    txreq -url "/two" -hdr "Accept-Encoding: gzip"
    rxresp
    expect resp.status == 200
    gunzip
    expect resp.bodylen == 7000
} -run
varnish v1 -expect cache_miss == 2
varnish v1 -expect cache_hit == 78
end
varnishtest -b 64M -q -t 120 cache.vtc > log 2>&1 || { tail -n 30 log; exit 1; }
echo passed
;;

# dig allocates through functions that only jemalloc has. Memory from those functions must stay with jemalloc.
dig)
python3 -c '
import os, socket, struct, threading
def answered(query, over_tcp):
    end = 12
    while query[end]: end += query[end] + 1
    question, kind = query[12:end + 5], struct.unpack(">H", query[end + 1:end + 3])[0]
    cut = kind == 16 and not over_tcp
    data = [bytes([10, n, question[1], 1]) for n in range(7)]
    if kind == 16: data = [] if cut else [bytes([200]) + bytes([97 + n % 26]) * 200 for n in range(250)]
    header = query[:2] + struct.pack(">HHHHH", 0x8780 if cut else 0x8580, 1, len(data), 0, 0)
    return header + question + b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, len(it)) + it for it in data)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
tcp = socket.socket(); tcp.bind(udp.getsockname()); tcp.listen(50)
def serve_tcp():
    while True:
        one, _ = tcp.accept()
        query = one.recv(struct.unpack(">H", one.recv(2, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
        reply = answered(query, True)
        one.sendall(struct.pack(">H", len(reply)) + reply); one.close()
threading.Thread(target=serve_tcp, daemon=True).start()
open("port.new", "w").write(str(udp.getsockname()[1])); os.rename("port.new", "port")
while True:
    query, who = udp.recvfrom(4096); udp.sendto(answered(query, False), who)
' &
until [ -f port ]; do kill -0 $!; sleep 0.05; done
ask="dig -p $(cat port) @127.0.0.1 +noall +answer +noedns"
for n in $(seq 300); do echo "host$n.example A"; done > questions
$ask -f questions | sort | sha256sum && $ask long.example TXT | sha256sum
$ask +tcp other.example A && $ask +short +identify another.example A | wc -l
;;

# A C++ program. Without the library, it gets its operators from jemalloc.
nghttpd)
mkdir htdocs; for n in 1 2 3; do seq 1 $((n * 20000)) > htdocs/file$n; done
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
nghttpd --no-tls -n 2 -d htdocs --address=127.0.0.1 --echo-upload "$port" > log 2>&1 &
ask="curl --silent --http2-prior-knowledge --noproxy *"
set -f; until $ask -o ignored "http://127.0.0.1:$port/file1"; do kill -0 $!; sleep 0.05; done
for round in 1 2 3 4 5; do for n in 1 2 3; do $ask "http://127.0.0.1:$port/file$n"; done; done | sha256sum
$ask --data-binary @htdocs/file3 "http://127.0.0.1:$port/" | sha256sum
$ask -o ignored -w '%{http_code} %{http_version}\n' "http://127.0.0.1:$port/none"
if command -v h2load >/dev/null; then
    h2load -n 2000 -c 20 -m 10 "http://127.0.0.1:$port/file1" | grep -E '^(requests|status codes)'
fi
;;

# numpy calls C's allocation functions directly, even for arrays that are zeroed or that grow.
python_with_numpy)
OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 python3 -c '
import hashlib, threading
import numpy
random = numpy.random.default_rng(1)
def digest(array): return hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()[:16]
numbers = random.integers(0, 1 << 40, 3_000_000)
print(digest(numpy.sort(numbers)), digest(numpy.unique(numbers % 10007, return_counts=True)[1]))
square = random.integers(-9, 9, (400, 400)).astype(float)
print(digest(square @ square.T), digest(numpy.rint(numpy.fft.ifft(numpy.fft.fft(numbers[:1 << 18] % 97)).real)))
zeroes = numpy.zeros(50_000_000); zeroes[::1_000_000] = 3
print(zeroes.sum(), zeroes.nonzero()[0][-1])
parts = [numpy.full(n * 1000, n, dtype=numpy.uint16) for n in range(1, 300)]
print(digest(numpy.concatenate(parts[::3])), sum(part.nbytes for part in parts))
for part in parts: part.resize(part.size * 2, refcheck=False)
print(sum(int(part.sum()) for part in parts))
sums = {}
def work(n): sums[n] = digest(numpy.cumsum(numbers[n * 1000:] % (n + 3)))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(sorted(sums.items()))
'
;;

*)
echo "there is no program $1" >&2
exit 1
;;
esac
