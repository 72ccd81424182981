{{/* Parts of the Kafka endpoint (serve.yaml). */}}

{{- define "sidetier.serve.name" -}}
{{- include "sidetier.fullname" . }}-serve
{{- end -}}

{{- define "sidetier.serve.selectorLabels" -}}
{{ include "sidetier.selectorLabels" . }}
app.kubernetes.io/component: serve
{{- end -}}

{{/* The address that clients connect to after their first request. */}}
{{- define "sidetier.serve.advertise" -}}
{{- $service := printf "%s.%s.svc:%d" (include "sidetier.serve.name" .) .Release.Namespace (int .Values.serve.port) -}}
{{- default $service .Values.serve.advertise -}}
{{- end -}}

{{/* MiB of the block cache. */}}
{{- define "sidetier.serve.cache" -}}
{{- $number := regexFind "^[0-9]+" .Values.serve.memory | int -}}
{{- ternary (mul 1024 $number) $number (hasSuffix "GiB" .Values.serve.memory) -}}
{{- end -}}

{{/* The most MiB that a pod can take: the sum of the bounds in docs/serve.md, "Memory and speed". */}}
{{- define "sidetier.serve.mostMemory" -}}
{{- $serve := .Values.serve -}}
{{- $process := 176 -}}
{{- $requests := add (mul 3 64) 128 64 -}}
{{- $connection := ternary 512 192 (not (empty $serve.tls.secretName)) -}}
{{- $connections := div (add (mul $connection (int $serve.maxConnections)) 1023) 1024 -}}
{{- $searches := div (max 0 (sub (include "sidetier.serve.cache" . | int) 256)) 4 -}}
{{- $groups := ternary 128 0 (eq $serve.groups.mode "local") -}}
{{- $live := ternary (add 128 (div (include "sidetier.serve.cache" . | int) 4)) 0 (not (empty $serve.live.bootstrapServers)) -}}
{{- add (include "sidetier.serve.cache" .) $process $requests $searches $connections $groups $live -}}
{{- end -}}

{{/*
Without `serve.resources`, the request of memory is the block cache and 256 MiB, which is enough for usual clients. The
limit is the most that clients can make a pod take, so that none of them can have it killed.
*/}}
{{- define "sidetier.serve.resources" -}}
{{- $usual := printf "%dMi" (add 256 (include "sidetier.serve.cache" .)) -}}
{{- $most := printf "%sMi" (include "sidetier.serve.mostMemory" .) -}}
{{- $default := dict "requests" (dict "cpu" "500m" "memory" $usual) "limits" (dict "memory" $most) -}}
{{- toYaml (default $default .Values.serve.resources) -}}
{{- end -}}

{{- define "sidetier.serve.args" -}}
{{- $serve := .Values.serve -}}
- serve
- --config
- /etc/sidetier/sidetier.yaml
- --listen
- {{ printf "[::]:%d" (int $serve.port) | quote }}
- --advertise
- {{ include "sidetier.serve.advertise" . | quote }}
- --memory
- {{ $serve.memory | quote }}
- --max-connections
- {{ $serve.maxConnections | int | quote }}
- --metrics-port
- {{ include "sidetier.port" . | quote }}
{{- with $serve.maxBytesPerSecond }}
- --max-bytes-per-second
- {{ . | quote }}
{{- end }}
{{- with $serve.live.bootstrapServers }}
- --live
- {{ . | quote }}
{{- end }}
{{- if $serve.live.propertiesSecret }}
- --live-properties
- /etc/sidetier-live/client.properties
{{- end }}
{{- range $serve.live.prefer }}
- --prefer
- {{ . | quote }}
{{- end }}
{{- with $serve.live.window }}
- --live-window
- {{ . | quote }}
{{- end }}
{{- with $serve.groups.mode }}
- --groups
- {{ ternary (printf "relay=%s" $serve.groups.bootstrapServers) . (eq . "relay") | quote }}
{{- if $serve.groups.propertiesSecret }}
- --groups-properties
- /etc/sidetier-groups/client.properties
{{- end }}
{{- end }}
{{- if $serve.tls.secretName }}
- --tls-certificate
- /etc/sidetier-tls/tls.crt
- --tls-key
- /etc/sidetier-tls/tls.key
{{- with $serve.tls.clientCa }}
- --tls-client-ca
- {{ printf "/etc/sidetier-tls/%s" . | quote }}
{{- end }}
{{- end }}
{{- if $serve.users.secretName }}
- --users
- {{ printf "/etc/sidetier-users/%s" $serve.users.key | quote }}
{{- end }}
{{- if $serve.insecure }}
- --insecure
{{- end }}
{{- with $serve.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Secrets that are mounted at /etc/sidetier-NAME, as a map from NAME to Secret. */}}
{{- define "sidetier.serve.secrets" -}}
{{- $serve := .Values.serve -}}
{{- $secrets := dict "groups" $serve.groups.propertiesSecret "live" $serve.live.propertiesSecret "tls" $serve.tls.secretName "users" $serve.users.secretName -}}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
{{ $name }}: {{ $secret }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sidetier.serve.validate" -}}
{{- $serve := .Values.serve -}}
{{- if not $serve.insecure -}}
{{- if not $serve.tls.secretName -}}
{{- fail "serve.enabled is true, and serve.tls.secretName is empty: records would be sent unencrypted, and without serve.users to every client that reaches the port; name the Secret of a certificate, or set serve.insecure: true if the network is trusted" -}}
{{- end -}}
{{- if not (or $serve.users.secretName $serve.tls.clientCa) -}}
{{- fail "serve.enabled is true, without serve.users.secretName and serve.tls.clientCa: every client that reaches the port could read all topics; name the Secret with the users, or require client certificates, or set serve.insecure: true if the network is trusted" -}}
{{- end -}}
{{- end -}}
{{- if and $serve.tls.clientCa (not $serve.tls.secretName) -}}
{{- fail "serve.tls.clientCa is a key of the Secret serve.tls.secretName, which is not set" -}}
{{- end -}}
{{- $live := $serve.live -}}
{{- if and (not $live.bootstrapServers) (or $live.propertiesSecret $live.prefer $live.window) -}}
{{- fail "serve.live.propertiesSecret, prefer and window are for serve.live.bootstrapServers, which is empty: name the live cluster (kafka:9092)" -}}
{{- end -}}
{{- if and (eq $serve.groups.mode "relay") (not $serve.groups.bootstrapServers) -}}
{{- fail "serve.groups.mode is relay, and serve.groups.bootstrapServers is empty: name the live cluster that keeps the groups (kafka:9092)" -}}
{{- end -}}
{{- if and $serve.groups.propertiesSecret (ne $serve.groups.mode "relay") -}}
{{- fail (printf "serve.groups.propertiesSecret is for serve.groups.mode relay, and the mode is %s" (default "not set" $serve.groups.mode)) -}}
{{- end -}}
{{- if eq $serve.groups.mode "local" -}}
{{- if $serve.autoscaling.enabled -}}
{{- fail "serve.groups.mode is local, and serve.autoscaling.enabled is true: local groups need one coordinator, which is one pod; use mode relay or none, or disable the autoscaling" -}}
{{- end -}}
{{- if gt (int $serve.replicas) 1 -}}
{{- fail (printf "serve.groups.mode is local, and serve.replicas is %d: local groups need one coordinator, which is one pod; use mode relay or none, or replicas: 1" (int $serve.replicas)) -}}
{{- end -}}
{{- end -}}
{{- $resources := include "sidetier.serve.resources" . | fromYaml -}}
{{- if and $serve.autoscaling.enabled (not (or (dig "requests" "cpu" "" $resources) (dig "limits" "cpu" "" $resources))) -}}
{{- fail "serve.autoscaling.enabled is true, and serve.resources has no requests.cpu: the autoscaler measures CPU time in percent of this request, and would never add a pod; set serve.resources.requests.cpu (500m)" -}}
{{- end -}}
{{- if and $serve.autoscaling.enabled (lt (int $serve.autoscaling.maxReplicas) (int $serve.autoscaling.minReplicas)) -}}
{{- fail "serve.autoscaling.maxReplicas is lower than minReplicas" -}}
{{- end -}}
{{- if and (eq $serve.service.type "LoadBalancer") (not $serve.advertise) -}}
{{- fail "serve.service.type is LoadBalancer, and serve.advertise is empty: clients outside of the cluster would be sent to the Service's name inside of it; set the balancer's name and port (kafka-archive.example.com:9092)" -}}
{{- end -}}
{{- if lt (include "sidetier.serve.cache" . | int) 16 -}}
{{- fail (printf "serve.memory is %s: at least 16MiB are needed" $serve.memory) -}}
{{- end -}}
{{- if eq (int $serve.port) (include "sidetier.port" . | int) -}}
{{- fail (printf "serve.port and config.http.port are both %d: the pod serves Kafka clients on one and metrics on the other" (int $serve.port)) -}}
{{- end -}}
{{- end -}}
