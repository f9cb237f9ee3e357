/* The wake-up protocol of docs/decisions/0003: core.outbox_notify, core.outbox_barrier_poll and the code
 * that uses them in the packages notify and dispatch, for one channel and one event type.
 * models_test.go has the bounds, and the broken variants that must leave a row behind.
 *
 * Rows are counted and have no identity. Between two steps of a process all others may run, so slow
 * processes need no modelling. One step here is one step in Postgres (trying a lock, a snapshot, a
 * commit becoming visible) or is done under a mutex in Go. One simplification: a claim takes its
 * snapshot and its row locks in one step.
 */

#ifndef PLAIN
#define PLAIN 2       /* producers of one row that decide at commit */
#endif
#ifndef BULK
#define BULK 0        /* producers that always notify and take no lock */
#endif
#ifndef ABORTING
#define ABORTING 0    /* producers that decide and then abort */
#endif
#ifndef IDLE
#define IDLE 0        /* producers that decide early (set constraints immediate) and never end */
#endif
#ifndef LISTENERS
#define LISTENERS 2   /* processes, each with its LISTEN connection and its consumer */
#endif
#ifndef RUNNERS
#define RUNNERS 1     /* the concurrency of each consumer; 0: rows are handled some time after a poll found them */
#endif
#ifndef LIMIT
#define LIMIT 9       /* rows of one claim */
#endif
#ifndef FOREIGN
#define FOREIGN 1     /* signals of other channels, which make a backend read its queue early */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0   /* claims that are rolled back; their runner claims again */
#endif
#ifndef RETRIES
#define RETRIES 0     /* rows that core.outbox_retry makes due later */
#endif
#ifndef LOSSES
#define LOSSES 0      /* claims whose connection is lost, and whose backend keeps the rows for a while */
#endif
#ifndef CRASHES
#define CRASHES 0      /* the last process crashes, or is told to stop, while it holds rows */
#endif
#ifndef RECONNECTS
#define RECONNECTS 0  /* LISTEN connections that are lost, with their notifications */
#endif
#ifndef EARLYPOLLS
#define EARLYPOLLS 0  /* polls of each listener at any time */
#endif
#ifndef POLL
#define POLL 0        /* each listener polls once more when no other step is possible */
#endif
#ifndef EXCUSED
#define EXCUSED 0     /* rows may be left whose producers relied on a notifier that aborted */
#endif

#define NORMAL 0
#define IN_BULK 1
#define ABORTS 2
#define STAYS_IDLE 3

#define FREE 0
#define PRODUCER 1
#define ABORTER 2
#define LISTENER 3

#define ME (1 << me)

/* Postgres: locks, rows, and a bit for each listener with notifications in its queue */
byte sShared;              /* producers that hold S */
bool sExclusive;           /* a listener holds S */
byte a = FREE;             /* who holds A */
byte pending, waiting;     /* visible rows that are not held: due, and due later */
byte locked, orphaned;     /* visible rows locked by a runner; by a backend without a client */
byte listening;            /* a bit for each listener */
byte queued;               /* committed, and not read by the listener's backend yet */

/* Go: for each process */
byte notified;                 /* on the way to the client or received by it: there is no difference */
byte runners[LISTENERS], started[LISTENERS];
bool again[LISTENERS];
bool woken;                /* of all processes, with no runners */
bool dead;

byte decided;              /* producers are alike, and numbered in the order of their decisions */
byte excused;
byte rollbacks, retries, losses, crashes;
bool polled[LISTENERS];

#define notify() queued = queued | listening

/* Each backend reads all that is committed. Notifying all of them at once loses no interleaving: a client may receive
 * a notification at any later time. */
#define signal() d_step { notified = notified | queued; queued = 0 }

/* core.outbox_notify and the commit that calls it */
proctype Producer(byte kind; byte number) {
  bool holdsS, holdsA, notifies;

  if
  :: kind == IN_BULK -> notifies = true
  :: d_step {
       kind != IN_BULK && (kind != NORMAL || decided == number);
       if
#ifndef NO_S
       :: sExclusive ->
#ifndef SILENT_WHEN_REFUSED
          notifies = true
#else
          skip
#endif
       :: else -> sShared++; holdsS = true
#else
       :: true
#endif
       fi;
       if :: kind == NORMAL -> decided++ :: else fi
     };
     if
#ifdef NO_S
     :: d_step {
          true;
#else
     :: !holdsS
     :: d_step {
          holdsS;
#endif
          if
          :: a == FREE -> a = (kind == ABORTS -> ABORTER : PRODUCER); holdsA = true; notifies = true
          :: a == ABORTER -> excused = excused + (kind == NORMAL)
          :: else
          fi
        }
     fi
  fi;

  if
  :: kind == ABORTS -> notifies = false
  :: kind == STAYS_IDLE -> goto end_idle
  :: d_step {
       kind == NORMAL || kind == IN_BULK;
#ifdef LOCKS_FIRST
       sShared = sShared - holdsS;
       if :: holdsA -> a = FREE :: else fi;
       holdsS = false; holdsA = false
     };
     d_step {
#endif
       pending++;
       if :: notifies -> notify() :: else fi
     }
  fi;
  /* the locks are released one by one, in any order */
  do
  :: holdsS -> d_step { sShared--; holdsS = false }
  :: holdsA -> d_step { a = FREE; holdsA = false }
  :: !holdsS && !holdsA -> break
  od;
  if
  :: notifies -> signal()
  :: !notifies
  fi;
  goto ended;
end_idle:
  false;
ended:
  skip
}

/* A poll and its wake signal are one step, and so are the start of a claim and the claim: a wake signal in between
 * would only cause one more claim. */
inline poll() {
  due = pending + locked + orphaned > 0;
  later = waiting > 0;
  if
  :: due && RUNNERS == 0 -> woken = true
  :: due && runners[me] < RUNNERS -> runners[me]++; started[me]++; again[me] = true
#ifndef WAKE_LOST
  :: due && RUNNERS > 0 && runners[me] == RUNNERS -> again[me] = true
#endif
  :: else
  fi
}

/* core.outbox_barrier */
inline barrier() {
#if defined(NO_BARRIER)
  passed = true
#elif defined(A_BEFORE_S)
  d_step { if :: a == FREE -> a = LISTENER; passed = true :: else fi };
  if
  :: passed ->
     a = FREE;
     d_step { if :: sShared == 0 && !sExclusive -> sExclusive = true :: else -> passed = false fi };
     if :: passed -> sExclusive = false :: else fi
  :: else
  fi
#else
  d_step { if :: sShared == 0 && !sExclusive -> sExclusive = true; passed = true :: else fi };
  if
  :: passed ->
#if defined(NO_A)
     sExclusive = false
#elif defined(A_AFTER_S)
     sExclusive = false;
     d_step { if :: a == FREE -> a = LISTENER :: else -> passed = false fi };
     if :: passed -> a = FREE :: else fi
#else
     d_step { if :: a == FREE -> a = LISTENER :: else -> passed = false fi };
#ifdef S_BEFORE_A
     sExclusive = false;
     if :: passed -> a = FREE :: else fi
#else
     if :: passed -> a = FREE :: else fi;
     sExclusive = false
#endif
#endif
  :: else
  fi
#endif
}

inline lose() {
  d_step { reconnects++; listening = listening & ~ME; queued = queued & ~ME; notified = notified & ~ME; ask = false }
}

/* notify.Notifier.watch */
proctype Listener(byte me) {
  bool due, later, passed, ask;
  byte polls, reconnects;

connect:
#ifndef LATE_LISTEN
  listening = listening | ME;
#else
  skip;
#endif
#ifdef FIRST_WITHOUT_BARRIER
  d_step { poll() };
#else
  ask = true;
#endif
  do
  :: /* notify.Notifier.pollUntilBarrier */
     if
#ifdef EMPTY_WITHOUT_BARRIER
     :: ask && due ->
#else
     :: ask || due ->
#endif
        do
        :: reconnects < RECONNECTS -> lose(); goto connect
#ifdef POLL_BEFORE_BARRIER
        :: d_step { poll() };
           barrier();
#else
        :: barrier();
           d_step { poll() };
#endif
           if
           :: passed -> break
           :: else -> /* it waits for a notification or a pause */
              if
              :: d_step { notified & ME -> notified = notified & ~ME }
              :: skip
              fi
           fi
        od
     :: else
     fi;
     due = false; passed = false; ask = false;
#ifdef LATE_LISTEN
     listening = listening | ME;
#endif
#ifdef NOTIFICATION_DROPPED
     notified = notified & ~ME;
#endif
end_await:
     if
     :: d_step { notified & ME -> notified = notified & ~ME; ask = true }
#ifndef NO_TIMER
     :: d_step { later && waiting == 0 -> poll() }
#endif
     :: d_step { polls < EARLYPOLLS -> polls++; poll() }
     :: reconnects < RECONNECTS -> lose(); goto connect
     :: atomic { POLL && timeout && !polled[me] -> polled[me] = true; poll() }
     :: dead && me == LISTENERS - 1 -> break
     fi
  od
}

/* consumer.drain */
proctype Runner(byte me) {
  byte mine;
  bool emptied, recheck;

end_idle:
  do
  :: d_step { started[me] > 0 -> started[me]--; emptied = false };
     do
     :: atomic {
          if
          :: dead && me == LISTENERS - 1 -> goto end_dead
          :: !(dead && me == LISTENERS - 1) && (!emptied || again[me]) -> again[me] = false
          :: else -> runners[me]--; break
          fi;
          d_step {
            mine = (pending < LIMIT -> pending : LIMIT);
            pending = pending - mine; locked = locked + mine;
            emptied = mine == 0
          };
#ifdef AGAIN_LATE
          skip
        };
        atomic {
          again[me] = false
#endif
        };
        if
        :: mine > 0 -> d_step { locked = locked - mine; mine = 0 }
        :: mine > 0 && rollbacks < ROLLBACKS ->
           d_step { rollbacks++; locked = locked - mine; pending = pending + mine; mine = 0 }
        :: mine > 0 && retries < RETRIES ->
           d_step {
             retries++; waiting++; locked = locked - mine; mine = 0;
#ifndef RETRY_SILENT
             notify()
#endif
           };
           signal()
        :: mine > 0 && losses < LOSSES ->
           d_step {
             losses++; locked = locked - mine; orphaned = orphaned + mine; mine = 0;
#ifndef NO_RECHECK
             recheck = true
#endif
           }
        :: mine > 0 && crashes < CRASHES && me == LISTENERS - 1 ->
           d_step { crashes++; dead = true; locked = locked - mine; pending = pending + mine; mine = 0 }
        :: mine == 0 && !recheck
        :: mine == 0 && recheck && orphaned == 0 -> emptied = false; recheck = false
           /* it rechecks until the backend is gone */
        fi
     od
  od;
end_dead:
  false
}

/* What happens in the course of time. */
proctype Time() {
  byte foreign;
end:
  do
  :: foreign < FOREIGN -> foreign++; signal()
  :: woken -> d_step { woken = false; pending = 0 }
  :: waiting > 0 -> d_step { waiting--; pending++ }
  :: orphaned > 0 -> d_step { pending = pending + orphaned; orphaned = 0 }
  od
}

init {
  byte n;
  atomic {
    do :: n < PLAIN -> run Producer(NORMAL, n); n++ :: else -> n = 0; break od;
    do :: n < BULK -> run Producer(IN_BULK, 0); n++ :: else -> n = 0; break od;
    do :: n < ABORTING -> run Producer(ABORTS, 0); n++ :: else -> n = 0; break od;
    do :: n < IDLE -> run Producer(STAYS_IDLE, 0); n++ :: else -> n = 0; break od;
    do
    :: n < LISTENERS * RUNNERS -> run Runner(n % LISTENERS); n++
    :: else -> n = 0; break
    od;
    do :: n < LISTENERS -> run Listener(n); n++ :: else -> n = 0; break od;
    run Time()
  };
  /* no step is possible: no row may be left */
  timeout && (!POLL || (polled[0] && (polled[LISTENERS - 1] || dead)));
  assert(waiting + locked + orphaned == 0);
  assert(pending <= (EXCUSED -> excused : 0))
}
