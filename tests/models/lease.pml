/* Leased mode: a row goes in flight under a fresh token, is executed outside any transaction, and
 * settled in one that locks it: the delivered row, its key in core.event_handled and what the
 * Completion writes become visible together, or nothing of them. models_test.go says which numbers
 * are tried, and what may be left out or done wrongly only for one of the assertions to fail.
 *
 * Between any two steps of one process all others may take theirs, so a frozen worker needs no
 * modelling. Nor does a worker as such: nothing that an execution does depends on whether the next
 * one of its row is in the same process. Rows with different keys have nothing in common, so the
 * rows here are twins, with one key. What is one step here is one statement in Postgres, or an end
 * of a transaction; a statement waits for row locks.
 */

#ifndef ROWS
#define ROWS 1         /* at most 2 */
#endif
#ifndef EXECUTIONS
#define EXECUTIONS 2   /* at a time */
#endif
#ifndef REAPERS
#define REAPERS 1
#endif
#ifndef LEASE
#define LEASE 2        /* ticks; of one, a heartbeat would gain nothing */
#endif
#ifndef TICKS
#define TICKS 4        /* at any time; more come when nothing else moves */
#endif
#ifndef DEATHS
#define DEATHS 1       /* a lease whose reply is lost is one, too */
#endif
#ifndef RETURNS
#define RETURNS 1      /* retries and releases */
#endif
#ifndef UNMATCHED
#define UNMATCHED 0    /* the statement that does not match the token */
#endif
#ifndef REAP_LATER
#define REAP_LATER 0   /* the reaper polls in one transaction, and updates in another what matches this */
#endif

#define PENDING 0
#define IN_FLIGHT 1
#define DELIVERED 2
#define FAILED 3

#define ABSENT 0
#define INSERTED 1     /* and not committed: whoever else inserts it waits */
#define HANDLED 2

#define SETTLE 1
#define HEARTBEAT 2
#define RETRY 3
#define FAIL 4
#define RELEASE 5

#define BY_ID 1
#define BY_STATUS 2

/* core.outbox. Only Postgres polls at a clock: all there is of time is what is left of each lease. */
byte status[ROWS], attempts[ROWS];
byte token[ROWS], left[ROWS];
bool locked[ROWS];

byte key = ABSENT;
byte effects;          /* of Completions, as far as they are visible */

/* Of each execution, and of its heartbeats: they may come after its end. */
byte row[EXECUTIONS], claim[EXECUTIONS];

/* For the assertions: leases are numbered, and a row in flight is under its last one. */
byte leases[ROWS], releases[ROWS], lease[EXECUTIONS];

byte begun;            /* executions are alike: they are numbered in the order of their first leases */
byte deaths, returns;

#define MINE row[me]
#define holder (status[MINE] == IN_FLIGHT && lease[me] == leases[MINE])

/* the where clause of all that a holder does */
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
#elif defined(KEY_LOOKED_UP)
#define wins (key != HANDLED)
#elif defined(CONFLICT_IGNORED)
#define wins (key == ABSENT || (key == HANDLED && executed))
#else
#define wins (key == ABSENT)
#endif
#if defined(NO_KEY)
#define concedes false
#elif defined(CONCEDE_UNCOMMITTED)
#define concedes (key != ABSENT)
#else
#define concedes (key == HANDLED)
#endif
#if defined(NO_KEY)
#define knownHandled false
#elif defined(KEY_REMEMBERED)
#define knownHandled (key != ABSENT)   /* by the process, from the insert on */
#else
#define knownHandled (key == HANDLED)
#endif

#ifdef SETTLE_LOOKS
#define LOCKS false    /* it updates the row in the end, by id */
#else
#define LOCKS true
#endif

inline leave(r, as) {
  status[r] = as; token[r] = 0; left[r] = 0
}

inline endMine(as) {
  assert(holder);
#ifdef EXPIRED_STAYS
  assert(left[MINE] > 0);
#endif
  leave(MINE, as)
}

inline take() {
  assert(status[MINE] == PENDING);
  leases[MINE]++; lease[me] = leases[MINE];
#ifdef TOKEN_REUSED
  claim[me] = 1;       /* the process's, and all executions are in one */
#else
  claim[me] = leases[MINE];
#endif
  status[MINE] = IN_FLIGHT; attempts[MINE]++; token[MINE] = claim[me]; left[MINE] = LEASE
}

inline complete() {
  effects++;
  assert(effects <= 1);
  assert(executed)     /* there is no outcome to write otherwise */
}

inline insertKey() {
  won = true;
#ifdef KEY_APART
  key = HANDLED
#else
  key = (key == ABSENT -> INSERTED : key)
#endif
#ifdef COMPLETION_APART
  ; complete()
#endif
}

inline over() {
  locked[MINE] = locked[MINE] && !LOCKS;
  won = false
}

inline commit() {
#ifndef COMPLETION_APART
  if :: won -> complete() :: else fi;
#endif
  key = (won -> HANDLED : key);
  assert(key == HANDLED);
  assert(effects >= 1);
  endMine(DELIVERED);
  over()
}

inline rollback() {
#ifndef KEY_APART
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
    :: begun >= me && status[1] == PENDING && leases[0] > 0 -> MINE = 1 /* rows are alike, too */
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
  /* A heartbeat found the lease lost. The execution may as well come to its end before it is cut off. */
  :: !locked[MINE] && !matches(HEARTBEAT) -> goto idle
  :: d_step { deaths < DEATHS -> deaths++; MINE = 0; claim[me] = 0; lease[me] = 0 }; goto idle
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
  /* it may be lost, and anything tried after that */
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
  :: concedes
  :: goto abort                                /* out of a wait, too */
  fi;
  if
  :: d_step { locked[MINE] == LOCKS -> commit() }; goto reply
  :: goto abort
  fi;
abort:
  /* by Postgres, the Completion or a death */
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

/* for update skip locked: what it locks it polls at again */
#define expired(n) (status[n] == IN_FLIGHT && left[n] == 0)
#if REAP_LATER
#define finds(n) expired(n) -> r = n
#else
#define finds(n) expired(n) && !locked[n] -> r = n; locked[n] = true
#endif

inline reap() {
  assert(status[r] != DELIVERED && status[r] != FAILED);
  assert(left[r] == 0);
  leave(r, PENDING)
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
  /* nothing moves any more */
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
