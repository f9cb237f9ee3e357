/* The claim watermark: a worker remembers a time before which no pending row can be, so that its
 * claims skip dead entries of the index. A claim reads stamps (available_at) from the watermark on, and
 * finds no pending row below it.
 *
 * A transaction has its xid before it stamps a row, and becomes visible later. The worker reads the
 * clock and then takes an xid. Once every lower xid has ended, each row stamped before that reading is
 * visible or gone, and the watermark may rise to it, but not past the oldest pending row. A row may be
 * stamped later than the clock says, never earlier, which is no harder. models_test.go has the bounds,
 * and the broken variants that must lose a row.
 */

#ifndef PRODUCERS
#define PRODUCERS 2   /* transactions that each publish a row or abort */
#endif
#ifndef CLAIMS
#define CLAIMS 2      /* of each claimer: delivered, rolled back or retried */
#endif
#ifndef CLAIMERS
#define CLAIMERS 1
#endif
#ifndef MOVES
#define MOVES 2       /* samples of clock and xid that the worker takes */
#endif
#ifndef RETURNS
#define RETURNS 0     /* rows become pending again */
#endif
#ifndef TICKS
#define TICKS 3
#endif

#define ABSENT 0
#define PENDING 1
#define CLAIMED 2     /* pending in every snapshot, under a row lock */
#define GONE 3

#define NO_ROW 255
#define BACKENDS (PRODUCERS + CLAIMERS + 1)
#define WORKER (PRODUCERS + CLAIMERS)

byte clock = 1;
byte nextXid = 1;
byte lastCompleted;        /* the highest */
byte xid[BACKENDS];        /* of the running transaction, or 0 */
byte row[PRODUCERS], stamp[PRODUCERS];
byte watermark;
byte begun;                /* producers are alike, and numbered in the order in which they begin */

#define assign(b) d_step { xid[b] = nextXid; nextXid++ }
#define finish(b) lastCompleted = (xid[b] > lastCompleted -> xid[b] : lastCompleted); xid[b] = 0

/* As in GetSnapshotData: xmax follows the highest xid completed, not the last one handed out,
 * and is xmin if no lower one runs. */
inline snapshot() {
  xmax = lastCompleted + 1;
  xmin = xmax;
  i = 0;
  do
  :: i < BACKENDS -> xmin = (xid[i] > 0 && xid[i] < xmin -> xid[i] : xmin); i++
  :: else -> i = 0; break
  od
}

inline readOldest() {
  oldest = NO_ROW; unclaimed = false;
  i = 0;
  do
  :: i < PRODUCERS ->
     if
     :: (row[i] == PENDING || row[i] == CLAIMED) && stamp[i] >= watermark && stamp[i] < oldest -> oldest = stamp[i]
     :: else
     fi;
     unclaimed = unclaimed || (row[i] == PENDING && stamp[i] >= watermark);
     i++
  :: else -> i = 0; break
  od
}

/* core.outbox_publish_event and its commit */
proctype Producer(byte me) {
  byte now;

#ifdef STAMP_FIRST
  d_step { begun == me -> begun++; now = clock };
  assign(me);
#else
  d_step { begun == me -> begun++; xid[me] = nextXid; nextXid++ };
  now = clock;
#endif
  if
  :: d_step { finish(me) }
  :: d_step { finish(me); row[me] = PENDING; stamp[me] = now; assert(now >= watermark) }
  fi
}

/* A claim is delivered, rolled back or retried (core.outbox_retry), or a settled or leased row becomes pending
 * again (a replay, an expired lease). The row lock takes the xid. */
proctype Claimer(byte me) {
  byte r, now, claims;
  bool back;

  do
  :: claims < CLAIMS ->
     claims++;
#ifdef RETRY_STAMP_FIRST
     now = clock;
#endif
end_idle:
     if
     :: d_step { row[0] == PENDING -> r = 0; row[0] = CLAIMED; xid[me] = nextXid; nextXid++ }
     :: d_step { row[1] == PENDING -> r = 1; row[1] = CLAIMED; xid[me] = nextXid; nextXid++ }
#if PRODUCERS > 2
     :: d_step { row[2] == PENDING -> r = 2; row[2] = CLAIMED; xid[me] = nextXid; nextXid++ }
#endif
     :: d_step { RETURNS && row[0] == GONE -> r = 0; back = true; xid[me] = nextXid; nextXid++ }
     fi;
     if
     :: d_step { !back -> finish(me); row[r] = GONE; r = 0 }
     :: d_step { !back -> finish(me); row[r] = PENDING; assert(stamp[r] >= watermark); r = 0 }
#ifdef RETURN_KEEPS_STAMP
     :: d_step { back -> finish(me); row[r] = PENDING; back = false; assert(stamp[r] >= watermark); r = 0 }
#endif
     ::
#ifndef RETRY_STAMP_FIRST
        now = clock;
#endif
        d_step { finish(me); row[r] = PENDING; stamp[r] = now; assert(now >= watermark); r = 0; now = 0; back = false }
     fi
  :: else -> break
  od
}

inline move() {
#ifdef NO_OLDEST
  /* a naive worker, after a claim that found no row */
  if :: sample <= xmin && !unclaimed && read > watermark -> watermark = read :: else fi;
#else
  read = (oldest < read -> oldest : read);
  if :: sample <= xmin && read > watermark -> watermark = read :: else fi;
#endif
  i = 0;
  do
  :: i < PRODUCERS -> assert(row[i] != PENDING || stamp[i] >= watermark); i++
  :: else -> i = 0; break
  od
}

proctype Worker() {
  byte i, read, sample, moves, xmin, xmax, oldest;
  bool unclaimed;

  do
  :: moves < MOVES ->
     moves++;
#if defined(XMAX)
     read = clock;
     d_step { snapshot(); sample = xmax; xmin = 0; xmax = 0 };
#elif defined(CLOCK_LATE)
     assign(WORKER);
     sample = xid[WORKER];
     read = clock;
     d_step { finish(WORKER) };
#else
     read = clock;
     assign(WORKER);
     sample = xid[WORKER];
     if
     :: d_step { finish(WORKER) }
     :: true /* it ends after the rows were read */
     fi;
#endif
#ifdef TWO_SNAPSHOTS
     d_step { readOldest() };
     d_step { snapshot(); move(); xmin = 0; xmax = 0; oldest = 0; read = 0; sample = 0; unclaimed = false };
#else
     d_step {
       readOldest(); snapshot(); move(); xmin = 0; xmax = 0; oldest = 0; read = 0; sample = 0; unclaimed = false
     };
#endif
     if
     :: d_step { xid[WORKER] > 0 -> finish(WORKER) }
     :: xid[WORKER] == 0
     fi
  :: else -> break
  od
}

proctype Time() {
  do
  :: clock < TICKS -> clock++
#ifdef CLOCK_STEPS
  :: clock > 1 -> clock--; break
#endif
  :: clock == TICKS -> break
  od
}

init {
  byte n;
  atomic {
    do :: n < PRODUCERS -> run Producer(n); n++ :: else -> n = 0; break od;
    do :: n < CLAIMERS -> run Claimer(PRODUCERS + n); n++ :: else -> n = 0; break od;
    run Worker();
    run Time()
  }
}
