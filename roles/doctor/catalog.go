package doctor

import "maps"

// Names of checks, as they are printed.
const (
	checkServer   = "ServerReachability"
	checkSnapshot = "SnapshotReachability"
	checkPolicy   = "PolicyReachability"
	checkProbe    = "ProbeReachability"
	checkEngine   = "EngineEvents"
	checkIndex    = "Index"
	checkTruth    = "TruthAudit"
	checkLookups  = "Lookups"
	checkTLS      = "Certificate"
	checkParity   = "TokenParity"
	checkInstall  = "Installation"
	checkWebhook  = "Webhooks"
	checkLoops    = "ControlLoops"
	checkBackend  = "CacheBackendHealth"
	checkPods     = "EnginePodInjectionAudit"
	checkOrphans  = "OrphanPodCheck"
	checkTenant   = "CacheTenantHealth"
	checkCoverage = "CachePolicyCoverage"
	checkAPI      = "KubernetesAPI"
)

// catalog is every id.
var catalog = both(systemKinds, clusterKinds)

func both(a, b map[string]kind) map[string]kind {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// systemKinds are what processes show of themselves. Conditions of a subscriber have the id of their name with
// dashes, and its advice as remedy.
var systemKinds = map[string]kind{
	"server-unreachable": {"SV001", checkServer, Fail,
		"no inferencecache server answers",
		"start the server, or give its address with --server; in a cluster: kubectl port-forward",
	},
	"server-not-serving": {"SV002", checkServer, Fail,
		"the server is up and not ready",
		"it starts or drains: look again in a few seconds, then at its log",
	},
	"server-serving": {"SV003", checkServer, OK, "the server is serving", ""},

	"snapshot-unreachable": {"SN001", checkSnapshot, Fail,
		"there is no /snapshot",
		"check --control; the port of the controller is not that of gateways",
	},
	"snapshot-unreadable": {"SN002", checkSnapshot, Warn,
		"/snapshot answers something else than a snapshot",
		"another service listens there, or another version: check --control",
	},
	"snapshot-open": {"SN003", checkSnapshot, Info,
		"/snapshot answers without a token",
		"anybody who reaches the port can replace policies: give --allowed-controller-sa where others can reach it",
	},
	"snapshot-answers": {"SN004", checkSnapshot, OK, "/snapshot answers", ""},
	"snapshot-refused": {"SN005", checkSnapshot, Warn,
		"/snapshot refuses this token",
		"it is not of the account of the server's --allowed-controller-sa, or not of its --controller-audience: correct these, or give another token with --token-file",
	},

	"policy-unreachable": {"PL001", checkPolicy, Fail,
		"there is no answer from /policy",
		"check --control and the server's version",
	},
	"policy-answers": {"PL002", checkPolicy, OK, "/policy answers", ""},
	"policy-odd": {"PL003", checkPolicy, Warn,
		"/policy answers oddly",
		"something between here and the server answers in its place",
	},
	"probe-unreachable": {"PB001", checkProbe, Fail,
		"there is no answer from /probe",
		"check --control and the server's version",
	},
	"probe-answers": {"PB002", checkProbe, OK, "/probe answers", ""},
	"probe-odd": {"PB003", checkProbe, Warn,
		"/probe answers oddly",
		"something between here and the server answers in its place",
	},

	"engine-healthy": {"EV000", checkEngine, OK, "events of the engine are followed", ""},
	"events-off": {"EV001", checkEngine, Fail,
		"nothing listens where the engine's events should come from",
		"turn events on (vLLM: --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\"}'), with a * in the endpoint so that the engine binds, and check --engine-endpoint",
	},
	"not-connected": {"EV002", checkEngine, Fail,
		"there is no connection to the engine's events",
		""},
	"no-events": {"EV003", checkEngine, Fail,
		"the engine computes prompts and says nothing",
		""},
	"topic-mismatch": {"EV004", checkEngine, Fail,
		"the engine publishes under another topic",
		""},
	"prefix-caching-off": {"EV005", checkEngine, Fail,
		"the engine caches no prefixes",
		""},
	"block-size-mismatch": {"EV006", checkEngine, Fail,
		"the engine's blocks are not of the server's size, so none of them can be matched",
		""},
	"ranks-missing": {"EV007", checkEngine, Warn,
		"not every rank of the engine is followed",
		""},
	"rank-mismatch": {"EV008", checkEngine, Warn,
		"a stream is that of another rank",
		""},
	"adapter-unmapped": {"EV009", checkEngine, Warn,
		"blocks of adapters without a name are dropped",
		""},
	"nothing-indexed": {"EV010", checkEngine, Fail,
		"the engine stores blocks, and none of them can be used",
		""},
	"lookup-mismatch": {"EV011", checkEngine, Fail,
		"a lookup as a gateway makes it does not find what this replica reported",
		""},
	"random-hash-seed": {"EV012", checkEngine, Warn,
		"equal prompts have other block names after a restart",
		""},
	"no-replay": {"EV013", checkEngine, Warn,
		"the engine does not answer requests for replay, so every gap drops what was held",
		""},
	"unknown-events": {"EV014", checkEngine, Warn,
		"the engine sends kinds of event that this version does not know",
		""},
	"cap-reached": {"EV015", checkEngine, Warn,
		"the engine holds more blocks than are kept track of",
		""},
	"engine-asleep": {"EV016", checkEngine, Warn,
		"the engine sleeps",
		""},
	"held-drifted": {"EV017", checkEngine, Warn,
		"more was taken for held than the engine has room for",
		""},
	"cache-unseen": {"EV018", checkEngine, Warn,
		"the engine's cache answers prompts, and nothing of it is known",
		""},
	"engine-stalled": {"EV019", checkEngine, Fail,
		"the event stream stands still",
		"the engine serves, but the thread that publishes events does not answer: restart the engine; see its log",
	},
	"engine-away": {"EV020", checkEngine, Fail,
		"the engine answers neither requests nor events",
		"start the engine, or remove its subscriber; check --engine-metrics-url and --engine-endpoint",
	},
	"api-silent": {"EV024", checkEngine, Warn,
		"events of the engine come, and its API does not answer",
		"if it hangs, restart it: prompts go there; if it serves, correct --engine-url (or --engine-metrics-url): its load is not known",
	},
	"model-mismatch": {"EV021", checkEngine, Fail,
		"the engine does not serve the model that is reported for it",
		"give the subscriber --model-id as the engine serves it (vLLM: --served-model-name), and gateways the same",
	},
	"stream-degraded": {"EV022", checkEngine, Warn,
		"the engine holds blocks that were never heard of, or may have dropped some that are",
		"let the engine replay from its start (vLLM: replay_endpoint and a larger buffer_steps in --kv-events-config), or restart it after its subscriber",
	},
	"no-engines": {"EV023", checkEngine, Info,
		"no subscriber was found, so no engine was looked at",
		"attach an engine (--engine), or start a subscriber beside one, and name it here with --subscriber",
	},

	"index-near-budget": {"IX001", checkIndex, Warn,
		"the index is near its budget and evicts, or soon will",
		"raise --index-memory, or shorten the TTL; `inferencecache bench --engines N` sizes it",
	},
	"index-disagrees": {"IX002", checkIndex, Warn,
		"the server does not know what the subscriber has told it",
		"look at the subscriber's log and at resyncs_total; restarting the subscriber sends everything anew",
	},
	"index-fits": {"IX003", checkIndex, OK, "the index fits into its budget and knows what subscribers report", ""},

	"replica-quarantined": {"TR001", checkTruth, Warn,
		"reports of a replica proved untrue, so its blocks count for nothing",
		"engines found less than was promised: compare block size, model and tokenizer of this replica's subscriber with its engine",
	},
	"reports-true": {"TR002", checkTruth, OK, "no replica's reports proved untrue", ""},

	"model-unknown": {"MD001", checkLookups, Warn,
		"gateways ask for a model of which no replica reports a block",
		"gateways and subscribers must name a model alike: compare the model in gateways' requests with --model-id",
	},
	"models-known": {"MD002", checkLookups, OK, "the models that gateways ask for are reported", ""},

	"certificate-expires": {"TL001", checkTLS, Warn,
		"the server's certificate ends in %d days",
		"renew the certificate; the server reads a new one from the same files by itself",
	},
	"certificate-expired": {"TL002", checkTLS, Fail,
		"the server's certificate has expired",
		"renew the certificate; the server reads a new one from the same files by itself",
	},
	"certificate-valid": {"TL003", checkTLS, OK, "the server's certificate is valid", ""},

	"token-parity": {"PA001", checkParity, Fail,
		"%d of %d prompts become other tokens at the gateway than at the engine",
		"gateway and engine must make the same tokens of a prompt: compare tokenizer, chat template and special tokens, or let the server tokenize (--tokenize-from-engines)",
	},
	"tokens-equal": {"PA002", checkParity, OK, "%d prompts become the same tokens at the gateway and at the engine", ""},
	"parity-unknown": {"PA003", checkParity, Warn,
		"gateway and engine could not be compared",
		"both URLs must answer POST /tokenize as vLLM does",
	},
	"control-skipped": {"SN006", checkSnapshot, Info,
		"the controller's port was not looked at",
		"give --control to look at the controller's port too",
	},
}

// hides lists, for a cause, what follows from it on the same replica (or, of
// servers, in the installation) and is not said again.
var hides = map[string][]string{
	"events-off":          {"not-connected", "no-events", "no-replay", "cache-unseen", "ranks-missing"},
	"engine-away":         {"not-connected", "no-replay", "events-off", "engine-stalled"},
	"prefix-caching-off":  {"no-events"},
	"topic-mismatch":      {"no-events", "cache-unseen", "stream-degraded"},
	"block-size-mismatch": {"nothing-indexed", "lookup-mismatch", "cache-unseen"},
	"engine-stalled":      {"no-replay", "no-events", "not-connected", "cache-unseen"},
	"no-replay":           {"stream-degraded", "cache-unseen"},
	"unknown-events":      {"stream-degraded"},
	"model-mismatch":      {"lookup-mismatch"},
	"adapter-unmapped":    {"nothing-indexed"},
	"engine-asleep":       {"no-events", "stream-degraded"},
	"held-drifted":        {"stream-degraded"},

	"server-unreachable": {"snapshots-unread", "policies-unpushed", "self-test-failed", "policy-unprogrammed"},
	"snapshot-refused":   {"snapshots-unread", "policies-unpushed", "self-test-failed", "policy-unprogrammed"},
	"snapshots-unread":   {"policies-unpushed", "self-test-failed", "policy-unprogrammed"},
	"policies-unpushed":  {"policy-unprogrammed"},
}
