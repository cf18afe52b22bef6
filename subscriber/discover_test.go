package subscriber

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// answering is a client of an engine that answers path with status and body
// and knows no other path.
func answering(t *testing.T, path string, status int, body string) (client *http.Client, url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != path || q.Method != http.MethodGet {
			http.NotFound(w, q)
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.Client(), s.URL
}

const (
	vllmPath   = "/kv_event_sources"
	sglangPath = "/server_info"
)

func TestDiscoverFindsRanks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dialect, path, body string
		want                []endpoint
	}{
		"vLLM": {"vllm", vllmPath, `[{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557","replay_endpoint":null,"topic":""}]`,
			[]endpoint{{Rank: 0, Events: "tcp://10.0.0.1:5557"}}},
		"vLLM, global ranks out of order": {"vllm", vllmPath, `[
			{"data_parallel_rank":9,"endpoint":"tcp://[fd00::1]:41002","replay_endpoint":"tcp://*:41003","topic":"kv"},
			{"data_parallel_rank":8,"endpoint":"tcp://*:41001","replay_endpoint":"ipc:///tmp/r","topic":"kv","later":{"a":[1]}}]`,
			[]endpoint{{Rank: 8, Events: "tcp://127.0.0.1:41001", Topic: "kv"}, {Rank: 9, Events: "tcp://[fd00::1]:41002", Replay: "tcp://127.0.0.1:41003", Topic: "kv"}}},
		"vLLM, hosts to bind": {"vllm", vllmPath, `[
			{"data_parallel_rank":0,"endpoint":"tcp://0.0.0.0:1"},
			{"data_parallel_rank":1,"endpoint":"tcp://[::]:2"},
			{"data_parallel_rank":2,"endpoint":"tcp://:65535"}]`,
			[]endpoint{{Rank: 0, Events: "tcp://127.0.0.1:1"}, {Rank: 1, Events: "tcp://127.0.0.1:2"}, {Rank: 2, Events: "tcp://127.0.0.1:65535"}}},
		"SGLang": {"sglang", sglangPath, `{"version":"1","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2}}`,
			[]endpoint{{Rank: 0, Events: "tcp://127.0.0.1:5557", Topic: "kv"}, {Rank: 1, Events: "tcp://127.0.0.1:5558", Topic: "kv"}}},
		"SGLang, no number of ranks": {"sglang", sglangPath, `{"kv_events":{"endpoint_host":"engine-0.svc","endpoint_port_base":5557}}`,
			[]endpoint{{Rank: 0, Events: "tcp://engine-0.svc:5557"}}},
		"SGLang, address in brackets": {"sglang", sglangPath, `{"kv_events":{"endpoint_host":"[fd00::1]","endpoint_port_base":5557,"dp_size":1}}`,
			[]endpoint{{Rank: 0, Events: "tcp://[fd00::1]:5557"}}},
		"SGLang, wildcard in brackets": {"sglang", sglangPath, `{"kv_events":{"endpoint_host":"[::]","endpoint_port_base":5557,"dp_size":1}}`,
			[]endpoint{{Rank: 0, Events: "tcp://127.0.0.1:5557"}}},
		"SGLang, several nodes": {"sglang", sglangPath, `{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"t","dp_size":8,
			"publishers":[{"dp_rank":4,"endpoint":"tcp://10.0.0.2:5561"},{"dp_rank":0,"endpoint":"tcp://10.0.0.1:5557"}]}}`,
			[]endpoint{{Rank: 0, Events: "tcp://10.0.0.1:5557", Topic: "t"}, {Rank: 4, Events: "tcp://10.0.0.2:5561", Topic: "t"}}},
		"SGLang, no publishers": {"sglang", sglangPath, `{"kv_events":{"endpoint_host":"*","endpoint_port_base":5557,"dp_size":1,"publishers":null}}`,
			[]endpoint{{Rank: 0, Events: "tcp://127.0.0.1:5557"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, url := answering(t, tc.path, http.StatusOK, tc.body)
			got, err := discover(t.Context(), client, tc.dialect, url+"/")
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("err %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestDiscoverTellsWhatIsNotOffered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dialect, path string
		status        int
		body          string
	}{
		"older vLLM":           {"vllm", "/other", http.StatusOK, ""},
		"method not allowed":   {"vllm", vllmPath, http.StatusMethodNotAllowed, ""},
		"vLLM, null":           {"vllm", vllmPath, http.StatusOK, "null"},
		"older SGLang":         {"sglang", sglangPath, http.StatusOK, `{"version":"0.4"}`},
		"SGLang, events off":   {"sglang", sglangPath, http.StatusOK, `{"kv_events":null}`},
		"SGLang, null":         {"sglang", sglangPath, http.StatusOK, "null"},
		"ancient SGLang":       {"sglang", "/get_server_info", http.StatusOK, "{}"},
		"TensorRT-LLM":         {"trtllm", "/", http.StatusOK, ""},
		"a dialect of another": {"lmdeploy", "/", http.StatusOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, url := answering(t, tc.path, tc.status, tc.body)
			if got, err := discover(t.Context(), client, tc.dialect, url); !errors.Is(err, errNoDiscovery) || got != nil {
				t.Errorf("%v, err %v", got, err)
			}
		})
	}
}

func TestDiscoverRefusesDoubt(t *testing.T) {
	t.Parallel()
	source := func(rank, address string) string {
		return fmt.Sprintf(`{"data_parallel_rank":%s,"endpoint":%q}`, rank, address)
	}
	many := strings.TrimSuffix(strings.Repeat(source("1", "tcp://h:1")+",", maxRanks+1), ",")
	events := func(members string) string { return `{"kv_events":{` + members + `}}` }
	for name, tc := range map[string]struct {
		dialect, path string
		status        int
		body, want    string // want is in the error
	}{
		"down":                  {"vllm", vllmPath, http.StatusServiceUnavailable, "", "503"},
		"not JSON":              {"vllm", vllmPath, http.StatusOK, "<html>", "invalid character"},
		"no answer":             {"vllm", vllmPath, http.StatusOK, "", "unexpected end"},
		"cut short":             {"vllm", vllmPath, http.StatusOK, `[{"data_parallel_rank":0`, "unexpected end"},
		"not an array":          {"vllm", vllmPath, http.StatusOK, `{"sources":[]}`, "cannot unmarshal object"},
		"too long":              {"vllm", vllmPath, http.StatusOK, "[" + strings.Repeat(" ", maxDiscoveryBytes) + "]", "above 1048576 bytes"},
		"too deep":              {"vllm", vllmPath, http.StatusOK, strings.Repeat("[", 100_000), "depth"},
		"giant number":          {"vllm", vllmPath, http.StatusOK, `[{"data_parallel_rank":` + strings.Repeat("9", 500_000) + `}]`, "cannot unmarshal number"},
		"nobody publishes":      {"vllm", vllmPath, http.StatusOK, "[]", "no rank publishes"},
		"too many":              {"vllm", vllmPath, http.StatusOK, "[" + many + "]", "257 ranks"},
		"twice":                 {"vllm", vllmPath, http.StatusOK, "[" + source("1", "tcp://h:1") + "," + source("1", "tcp://h:2") + "]", "rank 1 is listed twice"},
		"no rank":               {"vllm", vllmPath, http.StatusOK, "[" + source("null", "tcp://h:1") + "]", "no rank"},
		"negative rank":         {"vllm", vllmPath, http.StatusOK, "[" + source("-1", "tcp://h:1") + "]", "no rank"},
		"rank and a half":       {"vllm", vllmPath, http.StatusOK, "[" + source("1.5", "tcp://h:1") + "]", "cannot unmarshal number"},
		"null element":          {"vllm", vllmPath, http.StatusOK, "[null]", "no rank"},
		"ipc":                   {"vllm", vllmPath, http.StatusOK, "[" + source("0", "ipc:///tmp/x") + "]", "rank 0: endpoint \"ipc:///tmp/x\" is not tcp"},
		"inproc":                {"vllm", vllmPath, http.StatusOK, "[" + source("0", "inproc://x_dp0") + "]", "is not tcp"},
		"no endpoint":           {"vllm", vllmPath, http.StatusOK, "[" + source("0", "") + "]", "is not tcp"},
		"no port":               {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://h") + "]", "missing port"},
		"port zero":             {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://*:0") + "]", "port 0"},
		"any port":              {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://*:*") + "]", "invalid syntax"},
		"port above":            {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://h:65536") + "]", "port 65536"},
		"path":                  {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://h:1/x") + "]", "invalid syntax"},
		"user":                  {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://a@h:1") + "]", "is not a host"},
		"line break":            {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://a\nb:1") + "]", "is not a host"},
		"long endpoint":         {"vllm", vllmPath, http.StatusOK, "[" + source("0", "tcp://"+strings.Repeat("h", 1000)+":1") + "]", "above 512 bytes"},
		"long topic":            {"vllm", vllmPath, http.StatusOK, `[{"data_parallel_rank":0,"endpoint":"tcp://h:1","topic":"` + strings.Repeat("t", 1000) + `"}]`, "topic of rank 0"},
		"kv_events is text":     {"sglang", sglangPath, http.StatusOK, `{"kv_events":"on"}`, "cannot unmarshal string"},
		"another publisher":     {"sglang", sglangPath, http.StatusOK, events(`"publisher":"nats","endpoint_port_base":1,"dp_size":1`), `publisher "nats"`},
		"no port base":          {"sglang", sglangPath, http.StatusOK, events(`"publisher":"zmq","dp_size":1`), "port 0"},
		"no ranks":              {"sglang", sglangPath, http.StatusOK, events(`"endpoint_port_base":1,"dp_size":0`), "no rank publishes"},
		"negative ranks":        {"sglang", sglangPath, http.StatusOK, events(`"endpoint_port_base":1,"dp_size":-1`), "no rank publishes"},
		"ranks without end":     {"sglang", sglangPath, http.StatusOK, events(`"endpoint_port_base":1,"dp_size":2000000000`), "2000000000 ranks"},
		"ports run out":         {"sglang", sglangPath, http.StatusOK, events(`"endpoint_port_base":65535,"dp_size":2`), "rank 1: port 65536"},
		"ports overflow":        {"sglang", sglangPath, http.StatusOK, events(`"endpoint_port_base":9223372036854775807,"dp_size":2`), "rank 0: port"},
		"publisher twice":       {"sglang", sglangPath, http.StatusOK, events(`"publishers":[{"dp_rank":0,"endpoint":"tcp://a:1"},{"dp_rank":0,"endpoint":"tcp://b:1"}]`), "rank 0 is listed twice"},
		"publisher unreachable": {"sglang", sglangPath, http.StatusOK, events(`"publishers":[{"dp_rank":0}]`), "is not tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, url := answering(t, tc.path, tc.status, tc.body)
			got, err := discover(t.Context(), client, tc.dialect, url)
			if err == nil || errors.Is(err, errNoDiscovery) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%v, err %.300v, want one with %q", got, err, tc.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestDiscoverNeedsAnEngineThatAnswers(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1", "http://", "http://\x00"} {
		if _, err := discover(t.Context(), &page{}, "vllm", url); err == nil || errors.Is(err, errNoDiscovery) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := discover(t.Context(), &page{}, "vllm", "http://engine:8000"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("engine that is away: %v", err)
	}
}
