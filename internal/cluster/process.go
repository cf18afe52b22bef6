package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon is one running process.
type daemon struct {
	name string
	log  string // file of its standard error
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // why; read it after done
}

func startDaemon(path, dir string, output io.Writer, args []string) (*daemon, error) {
	d := &daemon{name: filepath.Base(path), done: make(chan struct{})}
	d.log = filepath.Join(dir, d.name+".log")
	file, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	d.cmd = exec.Command(path, args...)
	d.cmd.Stderr = file
	if output != nil {
		d.cmd.Stderr = io.MultiWriter(file, output)
	}
	if err := d.cmd.Start(); err != nil {
		_ = file.Close()
		return nil, err
	}
	go func() { // ends with the process; stop waits for it
		defer close(d.done)
		d.err = d.cmd.Wait()
		_ = file.Close()
	}()
	return d, nil
}

// stop asks, then insists, and returns when the process is gone.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// routePods makes this machine answer for every address of podCIDR, until it is
// started anew. That takes root's rights, once.
func routePods(ctx context.Context) error {
	first, _, err := net.ParseCIDR(podCIDR)
	if err != nil {
		return err
	}
	if l, err := net.Listen("tcp", net.JoinHostPort(first.String(), "0")); err == nil {
		return l.Close()
	}
	args := []string{"route", "replace", "local", podCIDR, "dev", "lo"}
	if output, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("give pods addresses on this machine (do it as root, once: ip %s): %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

// leash fills dir with commands that run those in bin and die with the process
// that started them, however that dies: a test binary that is killed cannot
// stop its cluster. Where setpriv is missing (it is Linux's) they are plain
// links.
func leash(bin, dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	setpriv, err := exec.LookPath("setpriv")
	for _, name := range programs {
		target, leashed := filepath.Join(bin, name), filepath.Join(dir, name)
		if err != nil {
			if err := os.Symlink(target, leashed); err != nil {
				return "", err
			}
			continue
		}
		script := fmt.Sprintf("#!/bin/sh\nexec '%s' --pdeathsig KILL -- '%s' \"$@\"\n", setpriv, target)
		if err := os.WriteFile(leashed, []byte(script), 0o700); err != nil {
			return "", err
		}
	}
	return dir, nil
}

const dirPrefix = "inferencecache-cluster-"

// newDir makes the folder of one cluster, named after this process, and
// removes those of processes that were killed: an etcd leaves some 100 MB.
func newDir() (string, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-*", dirPrefix, os.Getpid()))
}

// tail returns the last lines of a log, for people.
func tail(file string) string {
	const most = 4 << 10 // bytes
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	return fmt.Sprintf("last lines of %s:\n%s", filepath.Base(file), bytes.TrimSpace(content))
}
