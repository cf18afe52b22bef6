package inject

import (
	"encoding/json"
	"slices"
	"strconv"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	connectorFlag = "--kv-transfer-config"
	hybridFlag    = "--disable-hybrid-kv-cache-manager"
	hashSeed      = "PYTHONHASHSEED"

	connectorName   = "LMCacheMPConnector"
	connectorModule = "lmcache.integration.vllm.lmcache_mp_connector"
)

// vllmLMCache connects vLLM to an LMCache server over its KV connector.
var vllmLMCache = adapter{
	container:    "vllm",
	scheme:       "vllm",
	httpPort:     8000,
	reservedArgs: []string{connectorFlag, hybridFlag},
	reservedEnv:  []string{hashSeed, envNodeIP, envFailOpen},
	kernels:      true,
	wire:         wireVLLM,
}

// connector is the value of --kv-transfer-config, as far as it is ours.
type connector struct {
	Name   string         `json:"kv_connector"`
	Module string         `json:"kv_connector_module_path,omitempty"`
	Role   string         `json:"kv_role"`
	Extra  connectorExtra `json:"kv_connector_extra_config"`
}

type connectorExtra struct {
	Host string `json:"lmcache.mp.host"`
	Port string `json:"lmcache.mp.port"` // text, as the connector reads it
}

func wireVLLM(w *wiring) error {
	if err := w.checkVLLM(); err != nil {
		return err
	}
	host, port, err := w.placeServer()
	if err != nil {
		return err
	}
	want := connector{connectorName, connectorModule, "kv_both", connectorExtra{"tcp://" + host, strconv.Itoa(int(port))}}
	if err := w.connect(want); err != nil {
		return err
	}
	if w.backend.Spec.LMCache.HybridKVCacheManager != v1alpha1.HybridKVEngine && !w.line.has(hybridFlag) {
		w.line.add(hybridFlag)
	}
	// Equal prompts must have equal keys in every process that shares a cache.
	w.setEnv(hashSeed, "0")
	return nil
}

// connect adds the connector, or sees that the one there is ours.
func (w *wiring) connect(want connector) error {
	text, err := json.Marshal(want)
	if err != nil {
		panic("bug: a connector that is no JSON: " + err.Error())
	}
	for _, a := range w.line.arguments() {
		if len(a.name) > len(connectorFlag) && a.name[:len(connectorFlag)+1] == connectorFlag+"." {
			return refuse(v1alpha1.SkipForeignConnector, "the engine sets %s itself: remove it, or set integration.mode to EventsOnly", a.name)
		}
	}
	found := w.line.find(connectorFlag)
	switch len(found) {
	case 0:
		w.line.add(connectorFlag, string(text))
		return nil
	case 1:
	default:
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s %d times: give it once at most", connectorFlag, len(found))
	}
	var have connector
	if err := json.Unmarshal([]byte(found[0].value), &have); err != nil {
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine's %s is not readable JSON: remove or mend it", connectorFlag)
	}
	switch {
	case have == want:
		return nil
	case have.Name == connectorName && w.wasOurs: // from an older spec
		return w.line.replace(found[0], connectorFlag, string(text))
	}
	return refuse(v1alpha1.SkipForeignConnector, "the engine has the KV connector %q of its own: remove %s, or set integration.mode to EventsOnly",
		have.Name, connectorFlag)
}

// checkVLLM refuses layouts that the connector cannot serve.
func (w *wiring) checkVLLM() error {
	l := w.line
	if all := l.find("--tensor-parallel-size", "-tp"); len(all) > 1 {
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has --tensor-parallel-size %d times: give it once at most", len(all))
	} else if len(all) == 1 && all[0].known && !positive(all[0].value) {
		return refuse(v1alpha1.SkipIncompatibleArgs, "--tensor-parallel-size %q is not a positive number", all[0].value)
	}
	for _, names := range [][]string{{"--pipeline-parallel-size", "-pp"}, {"--data-parallel-size", "-dp"}} {
		for _, a := range l.find(names...) {
			if a.value != "1" {
				return refuse(v1alpha1.SkipIncompatibleArgs, "LMCache's connector does not work with %s %s: remove it, or set integration.mode to EventsOnly", a.name, a.value)
			}
		}
	}
	for _, name := range []string{"rank", "start-rank", "size-local", "address", "rpc-port"} {
		if flag := "--data-parallel-" + name; l.has(flag) {
			return refuse(v1alpha1.SkipIncompatibleArgs, "LMCache's connector does not work with %s: remove it, or set integration.mode to EventsOnly", flag)
		}
	}
	if all := l.find(hybridFlag); len(all) > 1 || len(all) == 1 && l.tokens[all[0].at].text != hybridFlag {
		return refuse(v1alpha1.SkipIncompatibleArgs, "%s takes no value and is given once", hybridFlag)
	}
	return nil
}

func positive(s string) bool {
	n, err := strconv.ParseInt(s, 10, 32)
	return err == nil && n > 0
}

// setEnv gives a variable of the engine one literal value.
func (w *wiring) setEnv(name, value string) {
	engine := w.engine()
	for i, v := range engine.Env {
		if v.Name != name {
			continue
		}
		if v.Value == value && v.ValueFrom == nil && !namedAgain(engine.Env[i+1:], name) {
			return
		}
		w.warn("%s of the engine was replaced by %s=%s", name, name, value)
		engine.Env = slices.DeleteFunc(engine.Env, func(v envVar) bool { return v.Name == name })
		break
	}
	engine.Env = append(engine.Env, envVar{Name: name, Value: value})
}

func namedAgain(env []envVar, name string) bool {
	return slices.ContainsFunc(env, func(v envVar) bool { return v.Name == name })
}
