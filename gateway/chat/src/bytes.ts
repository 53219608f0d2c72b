// Positions in a text by UTF-8 bytes, as the protocol counts them.

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Returns the number of UTF-8 bytes of a text. */
export function byteLength(text: string): number {
  let bytes = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    // A surrogate pair is two units of two bytes each.
    bytes += unit < 0x80 ? 1 : unit < 0x800 || (unit >= 0xd800 && unit <= 0xdfff) ? 2 : 3;
  }
  return bytes;
}

/** Returns the first bytes of a text. The protocol never splits a code point. */
export function firstBytes(text: string, bytes: number): string {
  return decoder.decode(encoder.encode(text).subarray(0, bytes));
}

/** Returns a text without its first bytes. */
export function withoutBytes(text: string, bytes: number): string {
  return decoder.decode(encoder.encode(text).subarray(bytes));
}
