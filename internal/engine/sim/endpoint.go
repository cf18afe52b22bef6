package sim

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// tcpAddress turns a bind endpoint of ZeroMQ into the address of a listener.
func tcpAddress(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint %q does not start with tcp://", endpoint)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("endpoint %q is not tcp://host:port: %w", endpoint, err)
	}
	if host == "*" {
		host = ""
	}
	return net.JoinHostPort(host, port), nil
}

// offset adds a rank to the port of a TCP endpoint, as engines do. Port 0, any
// free one, stays.
func offset(endpoint string, rank int) (string, error) {
	at := strings.LastIndexByte(endpoint, ':') + 1
	port, err := strconv.ParseUint(endpoint[at:], 10, 16)
	if err != nil {
		return "", fmt.Errorf("endpoint %q does not end with a port", endpoint)
	}
	if port == 0 {
		return endpoint, nil
	}
	if port += uint64(rank); port > 65535 {
		return "", fmt.Errorf("endpoint %q leaves rank %d no port", endpoint, rank)
	}
	return endpoint[:at] + strconv.FormatUint(port, 10), nil
}

// withPort replaces the port of a TCP endpoint.
func withPort(endpoint string, port int) string {
	return endpoint[:strings.LastIndexByte(endpoint, ':')+1] + strconv.Itoa(port)
}

// dialable is addr with a loopback host in place of a wildcard.
func dialable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(tcp.Port))
}
