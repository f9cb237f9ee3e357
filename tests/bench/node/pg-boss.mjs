// pg-boss with what the comments of its options recommend for a full queue and for latency: large batches, burst mode,
// several workers, and notifications.
import { PgBoss } from "pg-boss";
import { command, connections, ended, handled, ready, serve, url, writeEffects } from "./lines.mjs";

const works = command.startsWith("work");
const boss = new PgBoss({ connectionString: url, max: Number(connections ?? 10), useListenNotify: works,
  supervise: works, schedule: works });
boss.on("error", (error) => console.error(error));
await boss.start();
if (command === "prepare") {
  await boss.createQueue("bench", { notify: true });
} else if (command === "publish") {
  serve((events) =>
    events.length === 1 ? boss.send("bench", events[0]) : boss.insert("bench", events.map((data) => ({ data }))));
  ready();
  await ended();
} else {
  const options = { batchSize: 1000, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work("bench", options, async (jobs) => {
    if (command === "work-with-effects") {
      await boss.getDb().executeSql(writeEffects, [jobs.map((job) => job.data.key)]);
    }
    for (const job of jobs) handled(job.data);
  });
  ready();
  await ended();
}
await boss.stop({ graceful: false });
process.exit(0);
