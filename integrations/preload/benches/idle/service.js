// A service that was busy, and now waits: it sends large answers, then answers a health check now and then.
// Arguments: seconds between two checks; 0 means no checks.
const http = require('http'), zlib = require('zlib');

const server = http.createServer((request, response) => {
  const parts = +request.url.slice(1);
  if (!parts) return response.end('ok');
  const made = [];
  for (let i = 0; i < parts; i++) made.push(Buffer.allocUnsafeSlow(1000 + (i * 7919) % 15000).fill(i));
  response.end(zlib.gzipSync(Buffer.concat(made).subarray(0, 200000)));
});

server.listen(0, '127.0.0.1', async () => {
  const get = parts => new Promise(done => {
    http.get({ port: server.address().port, path: '/' + parts }, answer => { answer.on('data', () => {}); answer.on('end', done); });
  });
  for (let round = 0; round < 10; round++) await Promise.all([1, 2, 3, 4].map(() => get(3000)));
  gc(); gc();
  const seconds = +process.argv[2];
  if (seconds) setInterval(() => get(0), seconds * 1000);
  process.stdout.write('idle\n');
});
