// Checks of a server through E2B's official JavaScript SDK, unchanged. Prints one JSON object, {check: outcome}.
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where the server is.
import assert from 'node:assert/strict'
import http from 'node:http'
import { Sandbox } from 'e2b'

class NotThere extends Error {}
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function until(condition) {
  for (let tries = 0; tries < 400; tries++) {
    if (await condition()) return
    await sleep(50)
  }
  throw new Error('it did not happen in time')
}

function overHttp(box, port, path) {
  const server = new URL(process.env.E2B_SANDBOX_URL)
  return new Promise((resolve, reject) => {
    const options = { host: server.hostname, port: server.port, path, headers: { Host: box.getHost(port) }, agent: false }
    http.get(options, (answer) => {
      let body = ''
      answer.on('data', (data) => (body += data))
      answer.on('end', () => resolve([answer.statusCode, body]))
    }).on('error', reject)
  })
}

const checks = {
  async create_and_kill(box) {
    assert.equal(await box.isRunning(), true)
    assert.notEqual(await box.kill(), false) // older versions return nothing
    assert.equal(await box.isRunning(), false)
  },
  async info_and_list() {
    const mark = `mark-${Date.now()}`
    const box = await Sandbox.create({ metadata: { mark }, timeoutMs: 120_000 })
    try {
      const info = await box.getInfo()
      assert.equal(info.sandboxId, box.sandboxId)
      assert.deepEqual(info.metadata, { mark })
      const pages = Sandbox.list({ query: { metadata: { mark } } })
      assert.deepEqual((await pages.nextItems()).map((each) => each.sandboxId), [box.sandboxId])
      await box.setTimeout(300_000)
      assert((await box.getInfo()).endAt.getTime() > Date.now() + 250_000)
    } finally {
      await box.kill()
    }
  },
  async run(box) {
    const seen = await box.commands.run('echo out; echo err >&2', { envs: { A: '1' }, cwd: '/tmp', user: 'root' })
    assert.deepEqual([seen.stdout, seen.stderr, seen.exitCode], ['out\n', 'err\n', 0])
    await assert.rejects(box.commands.run('exit 3'), (error) => error.exitCode === 3)
  },
  async streaming(box) {
    const parts = []
    await box.commands.run('echo a; sleep 0.3; echo b', { onStdout: (data) => parts.push(data) })
    assert.deepEqual(parts, ['a\n', 'b\n'])
  },
  async command_timeout(box) {
    await assert.rejects(box.commands.run('sleep 60', { timeoutMs: 500 }), /[Tt]imeout|timed|deadline/)
  },
  async background(box) {
    const handle = await box.commands.run('sleep 60', { background: true })
    assert.deepEqual((await box.commands.list()).map((each) => each.pid), [handle.pid])
    const again = await box.commands.connect(handle.pid)
    assert.equal(again.pid, handle.pid)
    assert.equal(await box.commands.kill(handle.pid), true)
    await assert.rejects(handle.wait())
    assert.equal(await box.commands.kill(handle.pid), false)
    await again.wait().catch(() => {})
  },
  async stdin(box) {
    const handle = await box.commands.run('read line; echo got $line', { background: true, stdin: true })
    await box.commands.sendStdin(handle.pid, 'hello\n')
    assert.equal((await handle.wait()).stdout, 'got hello\n')
  },
  async pty(box) {
    let output = ''
    const terminal = await box.pty.create({
      cols: 90, rows: 30, timeoutMs: 0, onData: (data) => (output += Buffer.from(data).toString()),
    })
    await box.pty.resize(terminal.pid, { cols: 100, rows: 40 })
    await box.pty.sendInput(terminal.pid, Buffer.from('stty size; exit 0\n'))
    await terminal.wait()
    assert.match(output, /40 100/)
  },
  async files(box) {
    await box.files.write('/tmp/js/a.txt', 'häßlich')
    assert.equal(await box.files.read('/tmp/js/a.txt'), 'häßlich')
    await box.files.write([{ path: '/tmp/js/b', data: 'b' }, { path: '/tmp/js/c', data: 'c' }])
    assert.deepEqual((await box.files.list('/tmp/js')).map((each) => each.name), ['a.txt', 'b', 'c'])
    assert.equal(Buffer.from(await box.files.read('/tmp/js/b', { format: 'bytes' })).toString(), 'b')
    assert.equal((await box.files.rename('/tmp/js/b', '/tmp/js/d')).path, '/tmp/js/d')
    assert.equal(await box.files.exists('/tmp/js/b'), false)
    assert.equal(await box.files.makeDir('/tmp/js/e'), true)
    assert.equal(await box.files.makeDir('/tmp/js/e'), false)
    assert.equal((await box.files.getInfo('/tmp/js/c')).size, 1)
    await box.files.remove('/tmp/js')
    assert.equal(await box.files.exists('/tmp/js'), false)
    await assert.rejects(box.files.read('/tmp/none'), /no such|not found|No such/i)
  },
  async watch(box) {
    await box.files.makeDir('/tmp/w')
    const names = []
    const watcher = await box.files.watchDir('/tmp/w', (event) => { names.push(event.name) })
    await box.files.write('/tmp/w/a', '1')
    await until(() => names.includes('a'))
    await watcher.stop()
  },
  async signed_urls(box) {
    await box.files.write('/tmp/signed', 'signed')
    const url = await box.downloadUrl('/tmp/signed', { useSignatureExpiration: 100 })
    const headers = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' }
    const answer = await fetch(url, { headers })
    assert.equal(await answer.text(), 'signed')
    assert.equal((await fetch(url.replace('signed', 'other'), { headers })).status, 401)
  },
  async pause_and_connect(box) {
    await box.files.write('/tmp/kept', '1')
    await (box.pause ? box.pause() : box.betaPause())
    assert.equal((await box.getInfo()).state, 'paused')
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal(await again.files.read('/tmp/kept'), '1')
  },
  async metrics(box) {
    const [seen] = await box.getMetrics()
    assert(seen.memUsed > 0)
  },
  async ports(box) {
    await box.commands.run('python3 -m http.server 8123 --directory /tmp', { background: true, timeoutMs: 0 })
    await box.files.write('/tmp/hello', 'hello')
    await until(async () => (await overHttp(box, 8123, '/hello'))[0] === 200)
    assert.deepEqual(await overHttp(box, 8123, '/hello'), [200, 'hello'])
  },
  async errors() {
    await assert.rejects(Sandbox.connect('no-such-sandbox'), /not found/i)
    await assert.rejects(Sandbox.create({ apiKey: `e2b_${'0'.repeat(40)}` }))
  },
  async fork(box) {
    if (!box.fork) throw new NotThere()
    await box.files.write('/tmp/seed', '1')
    const [child] = await box.fork()
    assert.equal(await child.files.read('/tmp/seed'), '1')
    await child.kill()
  },
}

const outcomes = {}
for (const [name, check] of Object.entries(checks)) {
  if (process.argv.length > 2 && !process.argv.includes(name)) continue
  let box
  try {
    if (check.length) box = await Sandbox.create({ timeoutMs: 120_000 })
    await check(box)
    outcomes[name] = 'pass'
  } catch (error) {
    if (!(error instanceof NotThere)) console.error(name, error)
    outcomes[name] = error instanceof NotThere ? 'n/a' : `${error.name}: ${error.message}`.slice(0, 300)
  }
  await box?.kill().catch(() => {})
}
console.log(JSON.stringify(outcomes))
process.exit(0)
