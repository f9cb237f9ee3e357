/* The wakeup of docs/decisions/0003: core.outbox_notify, core.outbox_barrier and what is around
 * them in notify and package dispatch, on one channel and one event type. models_test.go says which
 * numbers are tried, and which parts may be left out or done wrongly only for a row to be stranded.
 *
 * Rows have no identity: they are counted. Between any two steps of one process all others may take
 * theirs, so a slow process needs no modelling. What is one step here is one in Postgres (a lock
 * tried, a snapshot, a commit becoming visible) or is done under a mutex in Go. One simplification:
 * a claim takes its snapshot and its row locks in one step.
 */

#ifndef PLAIN
#define PLAIN 2       /* producers of one row, that decide at commit */
#endif
#ifndef BULK
#define BULK 0        /* producers that have notified ahead and take no lock */
#endif
#ifndef ABORTING
#define ABORTING 0    /* producers that decide, and then abort */
#endif
#ifndef IDLE
#define IDLE 0        /* producers that decide early (set constraints immediate) and never end */
#endif
#ifndef LISTENERS
#define LISTENERS 2   /* processes, each with its LISTEN connection and its consumer */
#endif
#ifndef RUNNERS
#define RUNNERS 1     /* the concurrency of each consumer; 0: rows go some time after any poll saw them */
#endif
#ifndef LIMIT
#define LIMIT 9       /* rows of one claim */
#endif
#ifndef FOREIGN
#define FOREIGN 1     /* signals of other channels, which make a backend read its queue early */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0   /* claims that are undone: their runner claims again */
#endif
#ifndef RETRIES
#define RETRIES 0     /* rows that core.outbox_retry makes due later */
#endif
#ifndef LOSSES
#define LOSSES 0      /* claims whose connection goes, and whose backend holds the rows a while longer */
#endif
#ifndef DEATHS
#define DEATHS 0      /* the last process dies, or is told to stop, with rows in hand */
#endif
#ifndef RECONNECTS
#define RECONNECTS 0  /* LISTEN connections that are lost, with what they would have heard */
#endif
#ifndef EARLYPOLLS
#define EARLYPOLLS 0  /* polls of each listener at any time */
#endif
#ifndef POLL
#define POLL 0        /* each listener polls once more when nothing else moves */
#endif
#ifndef EXCUSED
#define EXCUSED 0     /* rows may be left that went silent beside a notifier that aborted */
#endif

#define PLAINLY 0
#define INBULK 1
#define INVAIN 2
#define FOREVER 3

#define NOBODY 0
#define PRODUCER 1
#define ABORTER 2
#define LISTENER 3

#define ME (1 << me)

/* Postgres: the locks, the rows, and for each listener what its notification queue holds */
byte sShared;              /* producers that hold S */
bool sExclusive;           /* a listener holds S */
byte a = NOBODY;           /* who holds A */
byte pending, waiting;     /* visible rows nobody holds: due, and due later */
byte locked, orphaned;     /* visible rows under the lock of a runner; of a backend without client */
byte listening;            /* a bit for each listener */
byte queued;               /* committed, and not read by the listener's backend yet */

/* Go: of each process */
byte notified;                 /* on its way to the client or in wakeup.notified: nothing tells them apart */
byte runners[LISTENERS], started[LISTENERS];
bool again[LISTENERS];
bool woken;                /* of all processes, with no runners */
bool dead;

byte decided;              /* producers are alike: they are numbered in the order of their decisions */
byte excused;
byte rollbacks, retries, losses, deaths;
bool polled[LISTENERS];

#define notify() queued = queued | listening

/* Each backend reads all that is committed. To notify all of them at once loses nothing: a notification may lie
 * unheard for as long as it likes. */
#define signal() d_step { notified = notified | queued; queued = 0 }

/* core.outbox_notify, and the commit it is part of */
proctype Producer(byte kind; byte number) {
  bool holdsS, holdsA, notifies;

  if
  :: kind == INBULK -> notifies = true
  :: d_step {
       kind != INBULK && (kind != PLAINLY || decided == number);
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
       if :: kind == PLAINLY -> decided++ :: else fi
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
          :: a == NOBODY -> a = (kind == INVAIN -> ABORTER : PRODUCER); holdsA = true; notifies = true
          :: a == ABORTER -> excused = excused + (kind == PLAINLY)
          :: else
          fi
        }
     fi
  fi;

  if
  :: kind == INVAIN -> notifies = false
  :: kind == FOREVER -> goto end_idle
  :: d_step {
       kind == PLAINLY || kind == INBULK;
#ifdef LOCKS_FIRST
       sShared = sShared - holdsS;
       if :: holdsA -> a = NOBODY :: else fi;
       holdsS = false; holdsA = false
     };
     d_step {
#endif
       pending++;
       if :: notifies -> notify() :: else fi
     }
  fi;
  /* the locks go one by one, in any order */
  do
  :: holdsS -> d_step { sShared--; holdsS = false }
  :: holdsA -> d_step { a = NOBODY; holdsA = false }
  :: !holdsS && !holdsA -> break
  od;
  if
  :: notifies -> signal()
  :: !notifies
  fi;
  goto over;
end_idle:
  false;
over:
  skip
}

/* Look and wake are one step, and so are the begin of a claim and the claim: a wake in between would
 * only make for one claim more. */
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
inline ask() {
#if defined(NO_BARRIER)
  passed = true
#elif defined(A_BEFORE_S)
  d_step { if :: a == NOBODY -> a = LISTENER; passed = true :: else fi };
  if
  :: passed ->
     a = NOBODY;
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
     d_step { if :: a == NOBODY -> a = LISTENER :: else -> passed = false fi };
     if :: passed -> a = NOBODY :: else fi
#else
     d_step { if :: a == NOBODY -> a = LISTENER :: else -> passed = false fi };
#ifdef S_BEFORE_A
     sExclusive = false;
     if :: passed -> a = NOBODY :: else fi
#else
     if :: passed -> a = NOBODY :: else fi;
     sExclusive = false
#endif
#endif
  :: else
  fi
#endif
}

inline lose() {
  d_step { reconnects++; listening = listening & ~ME; queued = queued & ~ME; notified = notified & ~ME; ringing = false }
}

/* wakeup.watch */
proctype Listener(byte me) {
  bool due, later, passed, ringing;
  byte polls, reconnects;

connect:
#ifndef LATE_LISTEN
  listening = listening | ME;
#else
  skip;
#endif
  d_step { poll() };
#ifndef FIRST_UNASKED
  ringing = true;
#endif
  do
  :: /* wakeup.lookUntilQuiet */
     if
#ifdef EMPTY_UNASKED
     :: ringing && due ->
#else
     :: ringing || due ->
#endif
        do
        :: reconnects < RECONNECTS -> lose(); goto connect
        :: ask();
           if
           :: !passed -> /* awaits a while */
              if
              :: d_step { notified & ME -> notified = notified & ~ME; poll() }
              :: d_step { poll() }
              fi
#ifdef NO_LAST_POLL
           :: passed -> break
#else
           :: passed -> d_step { poll() }; break
#endif
           fi
        od
     :: else
     fi;
     due = false; passed = false; ringing = false;
#ifdef LATE_LISTEN
     listening = listening | ME;
#endif
#ifdef NOTIFICATION_DROPPED
     notified = notified & ~ME;
#endif
end_await:
     if
     :: d_step { notified & ME -> notified = notified & ~ME; ringing = true; poll() }
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
  bool emptied, doubted;

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
             doubted = true
#endif
           }
        :: mine > 0 && deaths < DEATHS && me == LISTENERS - 1 ->
           d_step { deaths++; dead = true; locked = locked - mine; pending = pending + mine; mine = 0 }
        :: mine == 0 && !doubted
        :: mine == 0 && doubted && orphaned == 0 -> emptied = false; doubted = false /* the doubts outlast the backend */
        fi
     od
  od;
end_dead:
  false
}

/* What only time brings about. */
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
    do :: n < PLAIN -> run Producer(PLAINLY, n); n++ :: else -> n = 0; break od;
    do :: n < BULK -> run Producer(INBULK, 0); n++ :: else -> n = 0; break od;
    do :: n < ABORTING -> run Producer(INVAIN, 0); n++ :: else -> n = 0; break od;
    do :: n < IDLE -> run Producer(FOREVER, 0); n++ :: else -> n = 0; break od;
    do
    :: n < LISTENERS * RUNNERS -> run Runner(n % LISTENERS); n++
    :: else -> n = 0; break
    od;
    do :: n < LISTENERS -> run Listener(n); n++ :: else -> n = 0; break od;
    run Time()
  };
  /* nothing moves any more: no row may be left */
  timeout && (!POLL || (polled[0] && (polled[LISTENERS - 1] || dead)));
  assert(waiting + locked + orphaned == 0);
  assert(pending <= (EXCUSED -> excused : 0))
}
