// SPDX-License-Identifier: Apache-2.0

// Reads lines of payloads of Sparkplug B in base64 and writes what another's library makes of each, as a line of JSON. A line that is JSON is
// the reverse: it is a payload, and becomes base64.

import { createInterface } from "node:readline";
import sparkplug from "sparkplug-payload";

const codec = sparkplug.get("spBv1.0");
const plain = (_, v) =>
  v?.type === "Buffer" || v instanceof Uint8Array
    ? Buffer.from(v.data ?? v).toString("base64")
    : v !== null && typeof v === "object" && "low" in v && "high" in v
      ? ((BigInt(v.high) << 32n) | BigInt(v.low >>> 0)).toString()
      : typeof v === "bigint"
        ? v.toString()
        : v;

for await (const line of createInterface({ input: process.stdin })) {
  if (line.startsWith("{")) {
    console.log(Buffer.from(codec.encodePayload(JSON.parse(line))).toString("base64"));
  } else {
    console.log(JSON.stringify(codec.decodePayload(Buffer.from(line, "base64")), plain));
  }
}
