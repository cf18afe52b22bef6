package subscriber

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

const (
	lookupEvery   = 30 * time.Second
	lookupTimeout = 5 * time.Second
	// goneAfter answers in a row without it, an address is gone.
	goneAfter = 2
)

// Schemes of a --server that is a name for many: in the clear and with TLS.
const (
	schemeDNS    = "dns"
	schemeDNSTLS = "dns+https"
)

// resolver is the part of net.Resolver that a name needs.
type resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// name is a --server that stands for each address it has. Only the goroutine
// that follows it touches what is behind again.
type name struct {
	server string // as it was given
	base   string // URL with the name as host
	host   string
	port   string
	errors *metrics.Counter
	again  chan struct{} // room for one token: look it up now

	members map[string]*member // by address, host:port
	misses  map[string]int     // answers in a row without an address
	failing bool               // the last lookup failed
}

func newName(server, base string) (*name, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	return &name{
		server: server, base: base, host: u.Hostname(), port: u.Port(), again: make(chan struct{}, 1),
		members: map[string]*member{}, misses: map[string]int{},
	}, nil
}

// String is the name as it was given.
func (n *name) String() string { return n.server }

// hurry asks for a lookup before it is due. Any goroutine may call it.
func (n *name) hurry() {
	select {
	case n.again <- struct{}{}:
	default:
	}
}

// lookup returns the addresses of now, host:port, sorted.
func (n *name) lookup(ctx context.Context, r resolver) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	hosts, err := r.LookupHost(ctx, n.host)
	if err != nil {
		return nil, err
	}
	hosts = oneFamily(hosts)
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%s has no address", n.host)
	}
	addresses := make([]string, 0, len(hosts))
	for _, host := range hosts {
		addresses = append(addresses, net.JoinHostPort(host, n.port))
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}

// oneFamily keeps the IPv4 addresses if there are any: a server that has an
// address of each family is one server.
func oneFamily(hosts []string) []string {
	var four, six []string
	for _, host := range hosts {
		switch address, err := netip.ParseAddr(host); {
		case err != nil:
		case address.Unmap().Is4():
			four = append(four, address.Unmap().String())
		default:
			six = append(six, host)
		}
	}
	if len(four) > 0 {
		return four
	}
	return six
}

// judge takes an answer and returns the addresses that are gone by it.
func (n *name) judge(answer []string) (gone []string) {
	for address := range n.members {
		if slices.Contains(answer, address) {
			delete(n.misses, address)
			continue
		}
		if n.misses[address]++; n.misses[address] >= goneAfter {
			delete(n.misses, address)
			gone = append(gone, address)
		}
	}
	slices.Sort(gone)
	return gone
}

// parseServer reads a --server: the base URL of its requests, and whether its
// host is a name for many servers.
func parseServer(server string) (base string, many bool, err error) {
	scheme, rest, _ := strings.Cut(server, "://")
	switch scheme {
	case schemeDNS:
		base = "http://" + rest
	case schemeDNSTLS:
		base = "https://" + rest
	default:
		base, err = serverURL(server)
		return base, false, err
	}
	u, err := url.Parse(base)
	if err != nil {
		return "", true, err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || port <= 0 || port > 65535 || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", true, fmt.Errorf("%q: want %s://name:port", server, scheme)
	}
	return u.Scheme + "://" + u.Host, true, nil
}

func schemeOf(base string) string {
	scheme, _, _ := strings.Cut(base, "://")
	return scheme
}
