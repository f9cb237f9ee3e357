// graphile-worker with the settings of worker.graphile.org/docs/performance: a local queue, and completion in batches.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { command, connections, ended, handled, ready, serve, url, writeEffect } from "./lines.mjs";

const logger = new Logger(() => () => {});
if (command === "prepare") {
  await runMigrations({ connectionString: url, logger });
} else if (command === "publish") {
  const utils = await makeWorkerUtils({ connectionString: url, maxPoolSize: Number(connections), logger });
  const job = (payload) => ({ identifier: "bench", payload });
  serve((events) =>
    events.length === 1 ? utils.addJob("bench", events[0]) : utils.addJobs(events.map(job)));
  ready();
  await ended();
  await utils.release();
} else {
  const runner = await run({
    preset: {
      worker: {
        connectionString: url, concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 500 },
        completeJobBatchDelay: 0, failJobBatchDelay: 0,
      },
    },
    logger,
    noHandleSignals: true,
    taskList: {
      bench: async (payload, { query }) => {
        if (command === "work-with-effects") await query(writeEffect, [payload.key]);
        handled(payload);
      },
    },
  });
  ready();
  await ended();
  await runner.stop();
}
