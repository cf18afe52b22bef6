package inject

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	eventsFlag   = "--kv-events-config"
	eventsPort   = 5557
	eventsTopic  = "kv-events"
	localAddress = "127.0.0.1"
)

// publication is where an engine publishes its KV events.
type publication struct {
	Enabled   *bool  `json:"enable_kv_cache_events,omitempty"` // vLLM only
	Publisher string `json:"publisher,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	Replay    string `json:"replay_endpoint,omitempty"`
	Topic     string `json:"topic,omitempty"`
}

// publishEvents makes the engine publish, unless its command line or the
// backend says how it does.
func (w *wiring) publishEvents() error {
	if w.backend.Spec.Integration.KVEvents == v1alpha1.KVEventsExternal || len(w.eventArguments()) > 0 {
		return nil
	}
	events, replay, err := w.eventPorts()
	if err != nil {
		return err
	}
	p := publication{Publisher: "zmq", Topic: eventsTopic,
		Endpoint: fmt.Sprintf("tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay)}
	if w.backend.Spec.Runtime == v1alpha1.RuntimeVLLM {
		enabled := true
		p.Enabled = &enabled
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic("bug: a publication that is no JSON: " + err.Error())
	}
	w.line.add(eventsFlag, string(text))
	return nil
}

// eventArguments are the arguments about events: the flag, or its keys one by
// one as vLLM takes them (--kv-events-config.topic=t).
func (w *wiring) eventArguments() (all []argument) {
	for _, a := range w.line.arguments() {
		if a.name == eventsFlag || strings.HasPrefix(a.name, eventsFlag+".") {
			all = append(all, a)
		}
	}
	return all
}

// eventPorts are the first free ports for events and their replay. Every
// data-parallel rank adds its number to both.
func (w *wiring) eventPorts() (events, replay int32, err error) {
	ranks := w.ranks()
	taken := w.portsTaken()
	for events = eventsPort; events < eventsPort+100; events += 2 * ranks {
		free := true
		for p := events; p < events+2*ranks; p++ {
			free = free && taken[p] == ""
		}
		if free {
			return events, events + ranks, nil
		}
	}
	return 0, 0, refuse(v1alpha1.SkipPortCollision, "no port from %d on is free for KV events: give --kv-events-config with ports of your own", eventsPort)
}

// ranks is the number of data-parallel ranks in this pod.
func (w *wiring) ranks() int32 {
	for _, flag := range []string{"--data-parallel-size-local", "--data-parallel-size", "-dp", "--dp-size"} {
		if value, known, ok := w.line.last(flag); ok && known {
			if n, err := strconv.ParseInt(value, 10, 16); err == nil && n > 0 {
				return int32(n)
			}
		}
	}
	return 1
}

// published reads how the engine publishes; problem says why its events
// cannot be read from inside the pod.
func (w *wiring) published() (p publication, problem string) {
	for _, a := range w.eventArguments() {
		if key, ok := strings.CutPrefix(a.name, eventsFlag+"."); ok {
			p.set(strings.ReplaceAll(key, "-", "_"), a.value)
			continue
		}
		if err := json.Unmarshal([]byte(a.value), &p); err != nil {
			return p, "its " + eventsFlag + " is not readable JSON"
		}
	}
	vllm := w.backend.Spec.Runtime == v1alpha1.RuntimeVLLM
	switch {
	case vllm && (p.Enabled == nil || !*p.Enabled):
		return p, "its " + eventsFlag + " does not set enable_kv_cache_events"
	case p.Publisher != "zmq" && (p.Publisher != "" || !vllm):
		return p, fmt.Sprintf("its %s has publisher %q, not zmq", eventsFlag, p.Publisher)
	case p.Endpoint == "":
		p.Endpoint = fmt.Sprintf("tcp://*:%d", eventsPort)
	}
	return p, ""
}

func (p *publication) set(key, value string) {
	switch key {
	case "enable_kv_cache_events":
		enabled := strings.EqualFold(value, "true") || value == ""
		p.Enabled = &enabled
	case "publisher":
		p.Publisher = value
	case "endpoint":
		p.Endpoint = value
	case "replay_endpoint":
		p.Replay = value
	case "topic":
		p.Topic = value
	}
}

// dial is the address to read an endpoint from inside the pod. Engines bind
// only wildcards; other addresses they connect to.
func dial(endpoint string) (address string, ok bool) {
	hostPort, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", false
	}
	at := strings.LastIndexByte(hostPort, ':')
	if at < 0 {
		return "", false
	}
	port, err := strconv.ParseUint(hostPort[at+1:], 10, 16)
	if err != nil || port == 0 || !slices.Contains([]string{"*", "::", "[::]"}, hostPort[:at]) {
		return "", false
	}
	return "tcp://" + net.JoinHostPort(localAddress, hostPort[at+1:]), true
}
