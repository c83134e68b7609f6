// What a page needs before its player runs: messages in the place of the player, and decompression.

const BASE64_CHUNK = 1 << 20; // characters, a multiple of 4

/** A file that cannot be played. `title` and the message are shown in the page. */
export class ReplayProblem extends Error {
  constructor(title, message) {
    super(message);
    this.title = title;
  }
}

export const damaged = (message) => new ReplayProblem("This file is damaged", message);

/** Shows a message in the place of the player. */
export function showProblem(error) {
  const isExpected = error instanceof ReplayProblem;
  const ids = ["message", "message-title", "message-text", "app"];
  const [message, title, text, app] = ids.map((id) => document.getElementById(id));
  title.textContent = isExpected ? error.title : "This replay cannot be shown";
  text.textContent = isExpected ? error.message : `The player failed: ${error?.message ?? error}.`;
  message.hidden = false;
  app.hidden = true;
}

/** Returns the bytes of a zlib stream in base64, which is the text of an element of the page. */
export async function inflate(id) {
  const base64 = document.getElementById(id)?.textContent.trim();
  if (!base64) throw damaged(`It ends before the part ${id}. Copy or download the file again.`);
  if (typeof DecompressionStream === "undefined") {
    throw new ReplayProblem(
      "This browser is too old for replays",
      "It cannot decompress data. Chrome and Edge can since version 80, Safari since 16.4, and Firefox since 113.",
    );
  }
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  const inflated = new Response(stream.readable).arrayBuffer();
  const feed = async () => {
    for (let i = 0; i < base64.length; i += BASE64_CHUNK) {
      await writer.write(Uint8Array.from(atob(base64.slice(i, i + BASE64_CHUNK)), (character) => character.charCodeAt(0)));
    }
    await writer.close();
  };
  try {
    const [buffer] = await Promise.all([inflated, feed()]);
    return new Uint8Array(buffer);
  } catch (error) {
    writer.abort(error).catch(() => {}); // The stream has failed already, and is reported once.
    inflated.catch(() => {});
    throw new ReplayProblem(
      "This file is incomplete or damaged",
      `Its part ${id} cannot be decompressed (${error.message}). Copy or download the file again.`,
    );
  }
}
