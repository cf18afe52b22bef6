{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* labels COMPONENT: of an object of one component */ -}}
{{- define "selector" -}}
app.kubernetes.io/name: inference-cache
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "common" -}}
app.kubernetes.io/name: inference-cache
app.kubernetes.io/part-of: inference-cache
{{- end }}

{{- define "podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
    - ALL
{{- end }}

{{- /* spread COMPONENT: replicas on nodes of their own where there are enough */ -}}
{{- define "spread" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "selector" . | nindent 6 }}
{{- end }}

{{- define "placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* probes: both roles serve their pages on port 9090 */ -}}
{{- define "probes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 20
  timeoutSeconds: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}
