/* Leased mode: a row is leased under a new token, executed outside any transaction, and settled in a
 * transaction that locks it: the delivered row, its key in core.event_handled and the writes of the
 * Completion become visible together, or not at all. models_test.go has the bounds, and the broken
 * variants that must fail one of the assertions.
 *
 * Between two steps of a process all others may run, so frozen workers need no modelling. Nor do
 * workers: no step of an execution depends on whether the next one of its row is in the same
 * process. Rows with different keys do not interact, so the rows here have one key. One step here is
 * one statement in Postgres, or the end of a transaction; a statement waits for row locks.
 */

#ifndef ROWS
#define ROWS 1         /* at most 2 */
#endif
#ifndef EXECUTIONS
#define EXECUTIONS 2   /* at the same time */
#endif
#ifndef REAPERS
#define REAPERS 1
#endif
#ifndef LEASE
#define LEASE 2        /* in ticks; with one, a heartbeat would have no effect */
#endif
#ifndef TICKS
#define TICKS 4        /* at any time; more follow when no other step is possible */
#endif
#ifndef CRASHES
#define CRASHES 1       /* of workers; a lease whose reply is lost counts as one */
#endif
#ifndef RETURNS
#define RETURNS 1      /* retries and releases */
#endif
#ifndef UNMATCHED
#define UNMATCHED 0    /* the statement that does not match the token */
#endif
#ifndef REAP_LATER
#define REAP_LATER 0   /* the reaper reads in one transaction, and updates in another the rows that match this */
#endif

#define PENDING 0
#define IN_FLIGHT 1
#define DELIVERED 2
#define FAILED 3

#define ABSENT 0
#define INSERTED 1     /* and not committed: another insert waits */
#define HANDLED 2

#define SETTLE 1
#define HEARTBEAT 2
#define RETRY 3
#define FAIL 4
#define RELEASE 5

#define BY_ID 1
#define BY_STATUS 2

/* core.outbox. Only Postgres reads a clock: time is what is left of each lease. */
byte status[ROWS], attempts[ROWS];
byte token[ROWS], left[ROWS];
bool locked[ROWS];

byte key = ABSENT;
byte effects;          /* the visible writes of Completions */

/* For each execution and its heartbeats, which may come after its end. */
byte row[EXECUTIONS], claim[EXECUTIONS];

/* For the assertions: leases are numbered, and a row in flight has the last one. */
byte leases[ROWS], releases[ROWS], lease[EXECUTIONS];

byte begun;            /* executions are alike, and numbered in the order of their first leases */
byte crashes, returns;

#define MINE row[me]
#define holder (status[MINE] == IN_FLIGHT && lease[me] == leases[MINE])

/* the where clause of every statement of a holder */
#ifdef TOKEN_ONLY
#define valid true
#else
#define valid (left[MINE] > 0)
#endif
#define matches(statement) \
  (status[MINE] == IN_FLIGHT && (token[MINE] == claim[me] || statement == UNMATCHED) && valid)

/* insert into core.event_handled ... on conflict do nothing; and the fast path */
#if defined(NO_KEY)
#define wins true
#elif defined(KEY_READ_FIRST)
#define wins (key != HANDLED)
#elif defined(CONFLICT_IGNORED)
#define wins (key == ABSENT || (key == HANDLED && executed))
#else
#define wins (key == ABSENT)
#endif
#if defined(NO_KEY)
#define yields false
#elif defined(YIELD_UNCOMMITTED)
#define yields (key != ABSENT)
#else
#define yields (key == HANDLED)
#endif
#if defined(NO_KEY)
#define knownHandled false
#elif defined(KEY_REMEMBERED)
#define knownHandled (key != ABSENT)   /* the process remembers it from the insert on */
#else
#define knownHandled (key == HANDLED)
#endif

#ifdef SETTLE_READS_FIRST
#define LOCKS false    /* it updates the row later, by id */
#else
#define LOCKS true
#endif

inline setStatus(r, as) {
  status[r] = as; token[r] = 0; left[r] = 0
}

inline endMine(as) {
  assert(holder);
#ifdef EXPIRED_STAYS
  assert(left[MINE] > 0);
#endif
  setStatus(MINE, as)
}

inline take() {
  assert(status[MINE] == PENDING);
  leases[MINE]++; lease[me] = leases[MINE];
#ifdef TOKEN_REUSED
  claim[me] = 1;       /* one for the process, which has all executions */
#else
  claim[me] = leases[MINE];
#endif
  status[MINE] = IN_FLIGHT; attempts[MINE]++; token[MINE] = claim[me]; left[MINE] = LEASE
}

inline complete() {
  effects++;
  assert(effects <= 1);
  assert(executed)     /* else there is no result to write */
}

inline insertKey() {
  won = true;
#ifdef KEY_SEPARATE
  key = HANDLED
#else
  key = (key == ABSENT -> INSERTED : key)
#endif
#ifdef COMPLETION_SEPARATE
  ; complete()
#endif
}

inline over() {
  locked[MINE] = locked[MINE] && !LOCKS;
  won = false
}

inline commit() {
#ifndef COMPLETION_SEPARATE
  if :: won -> complete() :: else fi;
#endif
  key = (won -> HANDLED : key);
  assert(key == HANDLED);
  assert(effects >= 1);
  endMine(DELIVERED);
  over()
}

inline rollback() {
#ifndef KEY_SEPARATE
  key = (won && key == INSERTED -> ABSENT : key);
#endif
  over()
}

proctype Execution(byte me) {
  bool executed, won;

idle:
  executed = false;
end_idle:
  atomic {
    if
    :: begun >= me && status[0] == PENDING -> MINE = 0
#if ROWS > 1
    :: begun >= me && status[1] == PENDING && leases[0] > 0 -> MINE = 1 /* rows are alike */
#endif
    fi;
#ifdef LEASE_LATER
  };
  atomic {
#endif
    take();
    begun = (begun == me -> me + 1 : begun)
  };

work:
  if
  :: !executed -> executed = true; goto work   /* the external effect: at least once */
  :: !executed && knownHandled -> goto settle  /* the fast path */
  :: executed -> goto settle
  /* A heartbeat finds the lease lost. The execution may also end before it is cancelled. */
  :: !locked[MINE] && !matches(HEARTBEAT) -> goto idle
  :: d_step { crashes < CRASHES -> crashes++; MINE = 0; claim[me] = 0; lease[me] = 0 }; goto idle
  :: d_step { !locked[MINE] -> if :: matches(FAIL) -> endMine(FAILED) :: else fi }
  :: d_step {
       !locked[MINE] && returns < RETURNS ->
       if :: matches(RETRY) -> returns++; endMine(PENDING) :: else fi
     }
  :: d_step {
       !locked[MINE] && returns < RETURNS ->
       if
       :: matches(RELEASE) ->
          returns++; endMine(PENDING); releases[MINE]++;
#ifndef RELEASE_COUNTS
          attempts[MINE]--
#endif
       :: else
       fi
     }
  fi;
reply:
  /* the reply may be lost, and any step may be tried after that */
  if :: goto idle :: goto work fi;

settle:
  atomic {
    !locked[MINE];
    if
    :: matches(SETTLE) -> assert(holder); locked[MINE] = LOCKS
    :: else -> goto idle
    fi
  };
  if
  :: d_step { wins -> insertKey() }
  :: yields
  :: goto abort                                /* possible while it waits */
  fi;
  if
  :: d_step { locked[MINE] == LOCKS -> commit() }; goto reply
  :: goto abort
  fi;
abort:
  /* by Postgres, by the Completion or by a crash */
  atomic { rollback() };
  goto work
}

proctype Heart(byte me) {
end:
  do
  :: d_step {
       claim[me] > 0 && !locked[MINE] && matches(HEARTBEAT) && left[MINE] < LEASE ->
       assert(holder);
       left[MINE] = LEASE
     }
  od
}

/* for update skip locked: it reads again what it locked */
#define expired(n) (status[n] == IN_FLIGHT && left[n] == 0)
#if REAP_LATER
#define finds(n) expired(n) -> r = n
#else
#define finds(n) expired(n) && !locked[n] -> r = n; locked[n] = true
#endif

inline reap() {
  assert(status[r] != DELIVERED && status[r] != FAILED);
  assert(left[r] == 0);
  setStatus(r, PENDING)
}

proctype Reaper() {
  byte r;

end:
  do
  :: if
     :: d_step { finds(0) }
#if ROWS > 1
     :: d_step { finds(1) }
#endif
     fi;
#if REAP_LATER
     d_step {
       !locked[r];
       if :: REAP_LATER == BY_ID || status[r] == IN_FLIGHT -> reap() :: else fi;
       r = 0
     }
#else
     if
     :: d_step { reap(); locked[r] = false; r = 0 }
     :: d_step { locked[r] = false; r = 0 }
     fi
#endif
  od
}

#if ROWS > 1
#define runs (left[0] > 0 || left[1] > 0)
#else
#define runs (left[0] > 0)
#endif

inline tick() {
  n = 0;
  do
  :: n < ROWS -> left[n] = (left[n] > 0 -> left[n] - 1 : 0); n++
  :: else -> break
  od;
  n = 0
}

proctype Time() {
  byte n, ticks;

end:
  do
  :: d_step { ticks < TICKS && runs -> ticks++; tick() }
  :: atomic { timeout && runs -> tick() }
  od
}

init {
  byte n, delivered;

  atomic {
    do :: n < EXECUTIONS -> run Execution(n); run Heart(n); n++ :: else -> n = 0; break od;
    do :: n < REAPERS -> run Reaper(); n++ :: else -> n = 0; break od;
    run Time()
  };
  /* no step is possible */
  timeout && !runs;
  do
  :: n < ROWS ->
     assert(status[n] == DELIVERED || status[n] == FAILED);
     assert(attempts[n] == leases[n] - releases[n]);
     delivered = delivered + (status[n] == DELIVERED);
     n++
  :: else -> break
  od;
  assert(effects == (delivered > 0) && (key == HANDLED) == (delivered > 0))
}
