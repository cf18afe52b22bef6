package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
)

// fromEnvironment is the value of --otlp-endpoint that asks for OpenTelemetry's
// own variables.
const fromEnvironment = "env"

// Config is where spans go, and how many.
type Config struct {
	Endpoint string  // base URL of the collector; "env"; "": no tracing
	Sample   float64 // share of lookups to trace whose caller does not say, 0-1
}

// Flags registers the flags of a server's tracing.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Endpoint, "otlp-endpoint", "", "collector to send spans of lookups to by OTLP over HTTP, http://collector:4318 for instance (env: what OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says; empty: no tracing)")
	fs.Float64Var(&c.Sample, "trace-sample", 1, "share of lookups to trace, 0 to 1, of those whose caller sent no traceparent; else the caller decides")
}

// Validate joins what is wrong.
func (c *Config) Validate() error {
	var errs []error
	if !(c.Sample >= 0 && c.Sample <= 1) {
		errs = append(errs, fmt.Errorf("--trace-sample %v: want 0 to 1", c.Sample))
	}
	if c.Endpoint != "" && c.Endpoint != fromEnvironment {
		errs = append(errs, checkURL("--otlp-endpoint", c.Endpoint))
	}
	return errors.Join(errs...)
}

// URL is where spans are posted to; "" without tracing. getenv reads the
// environment, which counts only if the endpoint says so.
func (c *Config) URL(getenv func(string) string) (string, error) {
	const path = "/v1/traces"
	switch c.Endpoint {
	case "":
		return "", nil
	case fromEnvironment:
		const traces, all = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
		if whole := getenv(traces); whole != "" { // used as it is, by the specification
			return whole, checkURL(traces, whole)
		}
		base := getenv(all)
		if base == "" {
			return "", fmt.Errorf("--otlp-endpoint env: neither %s nor %s is set", traces, all)
		}
		return strings.TrimSuffix(base, "/") + path, checkURL(all, base)
	}
	return strings.TrimSuffix(c.Endpoint, "/") + path, nil
}

func checkURL(name, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%s %q: want a URL like http://collector:4318", name, text)
	}
	return nil
}
