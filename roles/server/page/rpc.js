// The server's RPCs as Connect JSON over fetch: one request and answer, or a
// stream. Addresses are relative to the page, so that it works below a path.

const service = "inferencecache.v1alpha1.InferenceCache/";

export async function call(method, request, signal) {
  const response = await fetch(service + method, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Connect-Protocol-Version": "1" },
    body: JSON.stringify(request),
    cache: "no-store",
    signal,
  });
  const text = await response.text();
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Error(`${response.status} ${response.statusText}: something else than this server answers`);
  }
  if (!response.ok) throw new Error(answer.message || answer.code || response.statusText);
  return answer;
}

const endFlag = 2;

// stream calls heed for each message until the stream ends; it throws what ended
// it. A message is a byte of flags, its length in four, and JSON.
export async function stream(method, request, heed, opened, signal) {
  const response = await fetch(service + method, {
    method: "POST",
    headers: { "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1" },
    body: envelope(request),
    cache: "no-store",
    signal,
  });
  if (!response.ok || !response.body) throw new Error(response.statusText || "no stream");
  opened();
  const reader = response.body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream broke off");
    rest = join(rest, value);
    for (;;) {
      if (rest.length < 5) break;
      const length = new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      if (rest.length < 5 + length) break;
      const message = JSON.parse(new TextDecoder().decode(rest.subarray(5, 5 + length)));
      const last = (rest[0] & endFlag) !== 0;
      rest = rest.slice(5 + length);
      if (last) throw new Error(message.error?.message || "the stream has ended");
      heed(message);
    }
  }
}

function envelope(message) {
  const body = new TextEncoder().encode(JSON.stringify(message));
  const framed = new Uint8Array(5 + body.length);
  new DataView(framed.buffer).setUint32(1, body.length);
  framed.set(body, 5);
  return framed;
}

function join(a, b) {
  if (a.length === 0) return b;
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
