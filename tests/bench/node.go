package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app/embeddedpg"
)

// nodePrograms are the programs in node/, one for each system, and the packages that they need.
//
//go:embed node
var nodePrograms embed.FS

// node is a system whose workers and producers are a program for node. It says in which configuration it runs.
type node struct {
	info
	fill string
}

var nodePeers = []system{
	node{info{"graphile-worker", "graphile", "graphile_worker._private_jobs",
		"select exists (select from graphile_worker._private_jobs)"},
		`select graphile_worker.add_jobs(array(select json_populate_record(null::graphile_worker.job_spec,
			json_build_object('identifier', 'bench', 'payload', payload, 'run_at', t)) from r))`},
	node{info{"pg-boss", "pgboss", "pgboss.job",
		"select exists (select from pgboss.job where name = 'bench' and state < 'completed')"},
		"insert into pgboss.job (name, data, policy) select 'bench', payload, 'standard' from r"},
}

func (n node) Info() info { return n.info }

func (n node) Prepare(ctx context.Context, d *database) error {
	if _, err := installNode(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s is skipped: %v\n", n.name, err)
		return errSkipped
	}
	// the worker's login owns its tables, which have row-level security
	if err := d.exec(ctx, "grant create on database "+n.database+" to bench_worker"); err != nil {
		return err
	}
	c, err := n.command(ctx, "prepare", d, 2)
	if err != nil {
		return err
	}
	c.Stderr = os.Stderr
	return c.Run()
}

// installNode returns the folder of the programs and their packages, one in the cache folder for each edition of them.
func installNode(ctx context.Context) (string, error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", err
		}
	}
	files, err := fs.Sub(nodePrograms, "node")
	if err != nil {
		return "", err
	}
	names, err := fs.Glob(files, "*")
	hash := sha256.New()
	for _, name := range names {
		text, readErr := fs.ReadFile(files, name)
		err = errors.Join(err, readErr)
		hash.Write(text)
	}
	cache, cacheErr := embeddedpg.CacheFolder()
	if err := errors.Join(err, cacheErr); err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("bench-node-%.6x", hash.Sum(nil)))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	made := dir + ".new"
	if err := errors.Join(os.RemoveAll(made), os.CopyFS(made, files)); err != nil {
		return "", err
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	npm.Dir = made
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return dir, os.Rename(made, dir)
}

// command prepares a program. It runs in the node of the packages, because pg-boss needs a newer one than many machines
// have.
func (n node) command(ctx context.Context, what string, d *database, connections int) (*exec.Cmd, error) {
	dir, err := installNode(ctx)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", "node", "bin", "node"),
		filepath.Join(dir, n.name+".mjs"), what, d.worker, fmt.Sprint(connections))
	c.Dir = dir
	return c, nil
}

// process is a running program.
type process struct {
	command *exec.Cmd
	input   io.WriteCloser
	ended   chan struct{} // closed when its output ends
}

// start starts a program, waits until it is ready, and calls line for each further line of its output.
func (n node) start(ctx context.Context, what string, d *database, connections int,
	line func(string)) (*process, error) {
	c, err := n.command(context.WithoutCancel(ctx), what, d, connections)
	if err != nil {
		return nil, err
	}
	p := &process{command: c, ended: make(chan struct{})}
	c.Stderr = os.Stderr
	output, err := c.StdoutPipe()
	if err == nil {
		p.input, err = c.StdinPipe()
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() {
		return nil, errors.Join(fmt.Errorf("%s does not start", n.name), c.Wait())
	}
	go func() {
		defer close(p.ended)
		for lines.Scan() {
			line(lines.Text())
		}
	}()
	return p, nil
}

// stop ends the input of the program and waits for it.
func (p *process) stop() error {
	_ = p.input.Close()
	ending := time.AfterFunc(30*time.Second, func() { _ = p.command.Process.Kill() })
	defer ending.Stop()
	<-p.ended
	return p.command.Wait()
}

// Publisher returns a function that asks the producing program, and waits for its answer.
func (n node) Publisher(ctx context.Context, d *database, pool *pgxpool.Pool) (publishFunc, error) {
	var mu sync.Mutex
	waiting := make(map[int]chan struct{})
	last := 0
	p, err := n.start(ctx, "publish", d, int(pool.Config().MaxConns), func(line string) {
		var number int
		if _, err := fmt.Sscan(line, &number); err == nil {
			mu.Lock()
			defer mu.Unlock()
			close(waiting[number])
			delete(waiting, number)
		}
	})
	if err != nil {
		return nil, err
	}
	d.atEnd(func(context.Context) error { return p.stop() })
	return func(ctx context.Context, batch []event) error {
		answer := make(chan struct{})
		mu.Lock()
		last++
		waiting[last] = answer
		text, err := json.Marshal([]any{last, batch})
		if err == nil {
			_, err = p.input.Write(append(text, '\n'))
		}
		mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-answer:
			return nil
		case <-p.ended:
			return fmt.Errorf("%s has ended", n.name)
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func (n node) Fill(ctx context.Context, d *database, b backlog) error {
	_, err := d.pool.Exec(ctx, "with r as materialized ("+fillRows+") "+n.fill, b.args()...)
	return err
}

func (n node) Work(ctx context.Context, d *database, j job) (func() error, error) {
	what := "work"
	if j.effect != noEffect {
		what = "work-with-effects"
	}
	p, err := n.start(ctx, what, d, 10, func(line string) {
		var e event
		var at float64 // milliseconds
		if _, err := fmt.Sscan(line, &e.N, &at); err == nil && j.handle != nil {
			e.at = time.UnixMicro(int64(at * 1000))
			_ = j.handle(e)
		}
	})
	if err != nil {
		return nil, err
	}
	return p.stop, nil
}

// nodeVersions returns the packages with their versions; none where node is absent.
func nodeVersions() []string {
	var pinned struct{ Dependencies map[string]string }
	text, err := nodePrograms.ReadFile("node/package.json")
	_, absent := exec.LookPath("node")
	if err != nil || absent != nil || json.Unmarshal(text, &pinned) != nil {
		return nil
	}
	var versions []string
	for name, version := range pinned.Dependencies {
		versions = append(versions, name+" "+version)
	}
	slices.Sort(versions)
	return versions
}
