package obs

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"
)

func TestReadinessNeedsEveryCheck(t *testing.T) {
	t.Parallel()
	set := metrics.NewSet()
	set.NewCounter(`x_total{a="b"}`).Inc()
	healthy := false
	page := NewPage(set)
	page.AddCheck(func() bool { return healthy })
	mux := http.NewServeMux()
	page.Mount(mux)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	for _, v := range []struct {
		ready, healthy bool
		want           int
	}{{false, false, 503}, {true, false, 503}, {false, true, 503}, {true, true, 200}} {
		page.SetReady(v.ready)
		healthy = v.healthy
		if code, _ := get("/readyz"); code != v.want {
			t.Errorf("%+v: %d", v, code)
		}
	}
	if code, body := get("/healthz"); code != 200 || body != "ok" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `x_total{a="b"} 1`) || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %s", body)
	}
}

func TestLabelsThatClientsInventAreBounded(t *testing.T) {
	t.Parallel()
	labels := NewLabels(3)
	for i := range 100 {
		labels.Value(fmt.Sprint("model-", i))
	}
	for v, want := range map[string]string{"model-0": "model-0", "model-2": "model-2", "model-3": Other, "new": Other} {
		if got := labels.Value(v); got != want {
			t.Errorf("%s is shown as %s, want %s", v, got, want)
		}
	}
	odd := NewLabels(3)
	if got := odd.Value("a\"b}\n\\c\xff"); got != "a_b____c_" && got != "a_b___c_" {
		t.Errorf("unsafe label shown as %q", got)
	}
	if got := odd.Value(strings.Repeat("x", 129)); got != Other {
		t.Errorf("a long label is shown as %q", got)
	}
}

func TestLoggerRefusesUnknownWords(t *testing.T) {
	t.Parallel()
	for _, v := range [][2]string{{"xml", "info"}, {"json", "loud"}} {
		if _, err := NewLogger(io.Discard, v[0], v[1]); err == nil {
			t.Errorf("%v: no error", v)
		}
	}
	for _, v := range [][2]string{{"", ""}, {" JSON ", "Warning"}, {"text", "DEBUG"}} {
		if _, err := NewLogger(io.Discard, v[0], v[1]); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
}
