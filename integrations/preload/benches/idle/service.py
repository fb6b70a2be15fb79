# A service that was busy and is now mostly idle: it sends large responses on four threads, then only answers occasional health checks.
# Argument: seconds between health checks; 0 means none.
import http.server
import json
import sys
import threading
import time
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        rows = int(self.path[1:])
        body = json.dumps({"rows": [{"id": row, "name": "x" * (row % 50)} for row in range(rows)]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()


def get(rows):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{rows}") as answer:
        return len(json.loads(answer.read())["rows"])


threads = [threading.Thread(target=lambda: [get(20_000) for _ in range(5)]) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("idle", flush=True)
while True:
    time.sleep(float(sys.argv[1]) or 1_000)
    get(10)
