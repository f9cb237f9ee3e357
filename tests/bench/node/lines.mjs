// What the programs for node share: the lines that they exchange with node.go.
import { createInterface } from "node:readline";

// The command (prepare, work or publish), the database and the number of connections.
export const [, , command, url, connections] = process.argv;

export const writeEffect = `insert into bench.effects as e (key, n) values ($1, 1)
  on conflict (key) do update set n = e.n + excluded.n`;
export const writeEffects = `insert into bench.effects as e (key, n)
  select k, count(*) from unnest($1::int[]) as k group by k on conflict (key) do update set n = e.n + excluded.n`;

const input = createInterface({ input: process.stdin });

const print = (text) => process.stdout.write(text + "\n");

export const ready = () => print("ready");

// ended waits until the input ends.
export const ended = () => new Promise((resolve) => input.once("close", resolve));

let lines = [];

// handled reports an event and when it was handled, together with others of the same turn.
export function handled(event) {
  if (lines.length === 0) {
    setImmediate(() => {
      print(lines.join("\n"));
      lines = [];
    });
  }
  lines.push(`${event.n} ${performance.timeOrigin + performance.now()}`);
}

// serve publishes what each line asks for, [number, events], and answers with the number.
export function serve(publish) {
  input.on("line", async (line) => {
    const [number, events] = JSON.parse(line);
    await publish(events);
    print(number);
  });
}
